package io.pcaplake.logstore;

import java.net.URI;
import java.util.Locale;
import java.util.UUID;
import java.util.regex.Pattern;
import org.apache.hadoop.fs.Path;

/**
 * E(N): the writer of version N of a table. {@code tempPath}, below {@code _delta_log/}, holds the bytes of N.json.
 *
 * <p>An entry is completed after N.json exists, never before. {@code expires}: epoch seconds of a complete entry, else 0.
 */
record Entry(String tablePath, String fileName, String tempPath, boolean complete, long expires) {
    static final String LOG = "_delta_log";
    static final long EXPIRES_AFTER = 86_400; // seconds from completion until an entry may be deleted
    private static final Pattern VERSION = Pattern.compile("\\d{20}\\.json");

    /** A new entry for an attempt at a version, with a unique temp object. */
    static Entry begun(Path file) {
        String name = file.getName();
        return new Entry(tablePath(file.getParent().getParent()), name, ".tmp/" + name + "." + UUID.randomUUID(), false, 0);
    }

    Entry completed(long now) {
        return new Entry(tablePath, fileName, tempPath, true, now + EXPIRES_AFTER);
    }

    long version() {
        return Long.parseLong(fileName.substring(0, 20));
    }

    /** Whether it is N.json of a table's log; no other file of a log has an entry. */
    static boolean isVersion(Path file) {
        return isLog(file.getParent()) && VERSION.matcher(file.getName()).matches();
    }

    static boolean isVersion(String fileName) {
        return VERSION.matcher(fileName).matches();
    }

    static boolean isLog(Path folder) {
        return folder != null && folder.getName().equals(LOG);
    }

    static String fileName(long version) {
        return String.format(Locale.ROOT, "%020d.json", version);
    }

    /**
     * The one spelling of a table, whatever scheme it was opened with: {@code s3a://bucket/path}, without a slash at the end,
     * double slashes (Hadoop removes them), percent-encoding, or user.
     */
    static String tablePath(Path table) {
        URI uri = table.toUri();
        if (!isS3(uri.getScheme())) {
            return table.toString();
        }
        String bucket = uri.getAuthority();
        return "s3a://" + bucket.substring(bucket.indexOf('@') + 1) + uri.getPath();
    }

    static boolean isS3(String scheme) {
        return "s3a".equals(scheme) || "s3".equals(scheme) || "s3n".equals(scheme);
    }
}
