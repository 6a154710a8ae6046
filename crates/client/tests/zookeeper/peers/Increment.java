import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryForever;

/**
 * A Java program that locks with Curator's InterProcessMutex, in the way of its users. It knows nothing of Tenure.
 *
 * <pre>
 * HOSTS PATH increment FOLDER TIMES   takes turns at the counter that tenure::contract::Inside has in the folder
 * HOSTS PATH hold                     holds the lock until it reads a line, or the end of its input
 * HOSTS PATH try                      whether the lock is free
 * </pre>
 *
 * It prints a word for each thing that has happened, on a line of its own.
 */
public class Increment {
    private static final int SESSION_MS = 4000;
    private static final int CONNECT_MS = 30_000;
    private static final int STAY_MS = 2;
    /** Long enough for a node to be made and looked at, if the lock is free. */
    private static final int TRY_S = 2;

    public static void main(String[] args) throws Exception {
        CuratorFramework client =
            CuratorFrameworkFactory.newClient(args[0], SESSION_MS, CONNECT_MS, new RetryForever(100));
        client.start();
        client.blockUntilConnected();
        InterProcessMutex lock = new InterProcessMutex(client, args[1]);
        switch (args[2]) {
            case "increment" -> increment(lock, Path.of(args[3]), Integer.parseInt(args[4]));
            case "hold" -> hold(lock);
            case "try" -> tryOnce(lock);
            default -> throw new IllegalArgumentException(args[2] + " is none of increment, hold, try");
        }
        client.close();
    }

    private static void increment(InterProcessMutex lock, Path folder, int times) throws Exception {
        say("ready");
        for (int i = 0; i < times; i++) {
            lock.acquire();
            incrementInside(folder.resolve("counter"), folder.resolve("inside"));
            lock.release();
        }
        say("finished");
    }

    /** Two steps, which lose an increment if another holder is inside too. */
    private static void incrementInside(Path counter, Path mark) throws IOException, InterruptedException {
        try {
            Files.createFile(mark);
        } catch (FileAlreadyExistsException e) {
            throw new IllegalStateException("another holder is inside: " + mark + " exists", e);
        }
        try (RandomAccessFile file = new RandomAccessFile(counter.toFile(), "rw")) {
            ByteBuffer number = ByteBuffer.allocate(8).order(ByteOrder.LITTLE_ENDIAN);
            file.getChannel().read(number, 0);
            long before = number.getLong(0);
            Thread.sleep(STAY_MS);
            number.putLong(0, before + 1).rewind();
            file.getChannel().write(number, 0);
        }
        Files.delete(mark);
    }

    private static void hold(InterProcessMutex lock) throws Exception {
        say("ready");
        lock.acquire();
        say("held");
        System.in.read();
        lock.release();
        say("released");
    }

    private static void tryOnce(InterProcessMutex lock) throws Exception {
        if (lock.acquire(TRY_S, TimeUnit.SECONDS)) {
            lock.release();
            say("got");
        } else {
            say("busy");
        }
    }

    private static void say(String word) {
        System.out.println(word);
        System.out.flush();
    }
}
