# Waits for the end of the process that started this, then kills what is left of $GUARDED_SERVER, does
# $GUARD_LAST in $GUARDED_FOLDER, and removes that. See guard.rs.

# Nobody writes into this pipe: it only ends.
read -r _

name=${GUARDED_FOLDER##*/}
servers() {
    for file in $(grep -laF -e "$name" /proc/[0-9]*/cmdline); do
        process=${file%/cmdline}
        if [ "$(cat "$process/comm")" = "$GUARDED_SERVER" ]; then echo "${process#/proc/}"; fi
    done
}

# Again and again: one that dies just now may have forked before, or may still write. It takes no half a
# minute, and after that somebody else must look at what stays.
tries=0
while [ "$tries" -lt 300 ]; do
    left=$(servers)
    if [ -z "$left" ] && [ ! -e "$GUARDED_FOLDER" ]; then break; fi
    for pid in $left; do kill -KILL "$pid"; done
    if [ -e "$GUARDED_FOLDER" ]; then
        (cd "$GUARDED_FOLDER" && eval "$GUARD_LAST")
        rm -rf -- "$GUARDED_FOLDER"
    fi
    tries=$((tries + 1))
    if [ "$tries" -gt 2 ]; then sleep 0.1; fi
done
