//! The fence in Redis.

use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use tenure::fence::{FenceError, RedisFence};
use tenure_testkit::Redis;

use crate::{stale, token};

async fn connect(server: &Redis) -> MultiplexedConnection {
    let client = redis::Client::open(server.url()).unwrap();
    client.get_multiplexed_async_connection().await.unwrap()
}

#[tokio::test]
async fn an_older_token_changes_nothing() {
    let (fence, mut redis) = (RedisFence::new(), connect(Redis::shared()).await);
    fence.set(&mut redis, ("r/old", token(7)), "r:old", "seven").await.unwrap();
    assert_eq!(stale(fence.set(&mut redis, ("r/old", token(6)), "r:old", "six").await), 7);
    assert_eq!(redis.get::<_, String>("r:old").await.unwrap(), "seven");
    fence.set(&mut redis, ("r/old", token(7)), "r:old", "seven again").await.unwrap();
    fence.set(&mut redis, ("r/old", token(8)), "r:old", "eight").await.unwrap();
    assert_eq!(stale(fence.guard(&mut redis, ("r/old", token(7))).await), 8);
    assert_eq!(redis.get::<_, String>("r:old").await.unwrap(), "eight");
    assert_eq!(redis.get::<_, u64>("tenure:fence:r/old").await.unwrap(), 8);
    assert_eq!(redis.ttl::<_, i64>("tenure:fence:r/old").await.unwrap(), -1, "it stays");
}

#[tokio::test]
async fn tokens_are_compared_exactly_up_to_the_largest() {
    let (fence, mut redis) = (RedisFence::new(), connect(Redis::shared()).await);
    // Each is one more than the one before, also where a double cannot tell them apart.
    let steps = [0, 9, 9_999_999_999, (1 << 53) - 1, 1 << 53, i64::MAX.unsigned_abs() - 1, u64::MAX - 2];
    for smaller in steps {
        let larger = smaller + 1;
        fence.guard(&mut redis, ("r/exact", token(smaller))).await.unwrap();
        fence.guard(&mut redis, ("r/exact", token(larger))).await.unwrap();
        assert_eq!(stale(fence.guard(&mut redis, ("r/exact", token(smaller))).await), larger);
    }
    fence.guard(&mut redis, ("r/exact", token(u64::MAX))).await.unwrap();
    assert_eq!(stale(fence.guard(&mut redis, ("r/exact", token(u64::MAX - 1))).await), u64::MAX);
    assert_eq!(stale(fence.guard(&mut redis, ("r/exact", token(0))).await), u64::MAX);
}

/// How many keys and arguments a script has, and each of them.
type Seen = (i64, i64, String, String, String, String, String);

#[tokio::test]
async fn a_script_has_its_own_keys_and_arguments_and_its_answer_comes_back() {
    let (fence, mut redis) = (RedisFence::new(), connect(Redis::shared()).await);
    let show = fence.script("return { #KEYS, #ARGV, KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3] } -- all");
    let call = show.key("r:{s}:1").key("r:{s}:2").arg("a").arg(2).arg(&["c"]);
    let seen: Seen = call.run(&mut redis, ("r/script", token(1))).await.unwrap();
    let text = str::to_owned;
    assert_eq!(seen, (2, 3, text("r:{s}:1"), text("r:{s}:2"), text("a"), text("2"), text("c")));

    let empty: (i64, i64) = {
        let counts = fence.script("if #KEYS == 0 then return { #KEYS, #ARGV } end return 'more'");
        counts.call().run(&mut redis, ("r/script", token(1))).await.unwrap()
    };
    assert_eq!(empty, (0, 0), "a return in the middle, and none of the fence's own");

    let nothing: Option<String> =
        fence.script("local token = nil").call().run(&mut redis, ("r/script", token(1))).await.unwrap();
    assert_eq!(nothing, None);
    let flagged = fence.script("#!lua flags=allow-oom\nreturn ARGV[1]");
    let flagged: String = flagged.arg("seven").run(&mut redis, ("r/script", token(1))).await.unwrap();
    assert_eq!(flagged, "seven");
}

#[tokio::test]
async fn a_script_does_not_run_for_an_older_token() {
    let (fence, mut redis) = (RedisFence::new(), connect(Redis::shared()).await);
    let add = fence.script("return redis.call('INCRBY', KEYS[1], ARGV[1])");
    let sum: i64 = add.key("r:sum").arg(5).run(&mut redis, ("r/sum", token(2))).await.unwrap();
    assert_eq!(sum, 5);
    assert_eq!(stale(add.key("r:sum").arg(5).run::<i64>(&mut redis, ("r/sum", token(1))).await), 2);
    assert_eq!(redis.get::<_, i64>("r:sum").await.unwrap(), 5);
}

#[tokio::test]
async fn a_scripts_own_error_is_told_from_a_stale_token() {
    let (fence, mut redis) = (RedisFence::new(), connect(Redis::shared()).await);
    redis.set::<_, _, ()>("r:text", "text").await.unwrap();
    for failing in ["return redis.call('INCR', 'r:text')", "error('mine')", "this is no Lua"] {
        let answer = fence.script(failing).key("r:text").run::<i64>(&mut redis, ("r/error", token(1))).await;
        assert!(matches!(answer, Err(FenceError::Refused { .. })), "{failing}: {answer:?}");
    }
    let mine = fence.script("return redis.error_reply('MINE says no')");
    let answer = mine.call().run::<()>(&mut redis, ("r/error", token(1))).await;
    let error = answer.expect_err("the script says no").to_string();
    assert!(error.contains("MINE") && error.contains("says no"), "{error}");
}

#[tokio::test]
async fn a_redis_that_has_forgotten_the_script_is_told_it_again() {
    let server = Redis::start();
    let (fence, mut redis) = (RedisFence::with_prefix("mine:"), connect(&server).await);
    for number in [7, 8] {
        server.command(&["SCRIPT", "FLUSH"]);
        fence.set(&mut redis, ("r", token(number)), "data", number).await.unwrap();
    }
    server.command(&["SCRIPT", "FLUSH"]);
    assert_eq!(stale(fence.set(&mut redis, ("r", token(7)), "data", 7).await), 8);
    assert_eq!(server.command(&["GET", "data"]), "8");
    assert_eq!(server.command(&["GET", "mine:r"]), "8");
}

#[tokio::test]
async fn what_is_no_token_is_not_taken_for_one() {
    let (fence, mut redis) = (RedisFence::new(), connect(Redis::shared()).await);
    for damage in ["", "seven", "-7", "7\n", "99999999999999999999", "123456789012345678901"] {
        redis.set::<_, _, ()>("tenure:fence:r/damage", damage).await.unwrap();
        let answer = fence.set(&mut redis, ("r/damage", token(8)), "r:damage", "written").await;
        assert!(matches!(answer, Err(FenceError::Damaged { .. })), "{damage:?}: {answer:?}");
    }
    assert!(!redis.exists::<_, bool>("r:damage").await.unwrap());
}

#[tokio::test]
async fn a_silent_redis_is_neither_a_yes_nor_a_no() {
    let mut server = Redis::start();
    let (fence, mut redis) = (RedisFence::new(), connect(&server).await);
    server.kill();
    let answer = fence.set(&mut redis, ("r", token(7)), "data", "x").await;
    assert!(matches!(answer, Err(FenceError::NoAnswer { .. })), "{answer:?}");
}

#[tokio::test]
async fn a_resource_is_named_as_a_lock_is() {
    let (fence, mut redis) = (RedisFence::new(), connect(Redis::shared()).await);
    let answer = fence.guard(&mut redis, ("", token(7))).await;
    assert!(matches!(answer, Err(FenceError::Resource(_))), "{answer:?}");
}
