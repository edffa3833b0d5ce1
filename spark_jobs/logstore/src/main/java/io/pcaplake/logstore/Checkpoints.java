package io.pcaplake.logstore;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.hadoop.fs.Path;

/**
 * The checkpoints of a log. {@code _last_checkpoint} is only a hint: a checkpointer that was suspended may set it back.
 *
 * <p>Clean-up deletes the oldest versions first. If the N.json that the hint names exists, nothing above it was deleted and the
 * hint is sufficient; otherwise the log is listed.
 */
final class Checkpoints {
    private static final String LAST_CHECKPOINT = "_last_checkpoint";
    private static final Pattern HINTED = Pattern.compile("\"version\"\\s*:\\s*(\\d{1,18})\\b");
    private static final Pattern NAME =
            Pattern.compile("(\\d{20})\\.checkpoint(?:\\.\\d{10}\\.(\\d{10})|\\.[0-9a-f-]{36})?\\.(?:parquet|json)");

    private Checkpoints() {}

    /** Whether a complete checkpoint covers this version; then its N.json may have been cleaned up, and no reader needs it. */
    static boolean cover(ObjectStore objects, Path log, long version) throws IOException {
        long hint = hint(objects, log);
        if (hint >= version) {
            return true;
        }
        return !objects.exists(new Path(log, Entry.fileName(Math.max(hint, 0)))) && newest(objects, log) >= version;
    }

    /** The version that {@code _last_checkpoint} names, or -1. */
    private static long hint(ObjectStore objects, Path log) throws IOException {
        byte[] last = objects.get(new Path(log, LAST_CHECKPOINT));
        Matcher found = HINTED.matcher(last == null ? "" : new String(last, StandardCharsets.UTF_8));
        return found.find() ? Long.parseLong(found.group(1)) : -1;
    }

    /** The version of the newest complete checkpoint, by the names in the log, or -1. */
    private static long newest(ObjectStore objects, Path log) throws IOException {
        Map<String, Integer> parts = new HashMap<>();
        long newest = -1;
        for (String name : objects.names(log)) {
            Matcher found = NAME.matcher(name);
            if (!found.matches()) {
                continue;
            }
            String of = found.group(2); // number of parts
            boolean whole = of == null || parts.merge(found.group(1) + of, 1, Integer::sum) == Integer.parseInt(of);
            if (whole) {
                newest = Math.max(newest, Long.parseLong(found.group(1)));
            }
        }
        return newest;
    }
}
