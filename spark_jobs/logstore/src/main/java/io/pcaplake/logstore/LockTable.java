package io.pcaplake.logstore;

import java.io.IOException;
import java.util.Optional;

/**
 * A lock table that other programs use too. Reads are strongly consistent.
 *
 * <p>After an {@link IOException} of a write it is unknown whether the write was carried out; after {@link Refused} it was not,
 * and will not be. A client may repeat a write, so a write may be refused because of itself: compare the {@code tempPath}.
 */
interface LockTable {
    /** The entry of the highest version. */
    Optional<Entry> newest(String tablePath) throws IOException;

    Optional<Entry> get(String tablePath, String fileName) throws IOException;

    /** Put an entry if its version has none. Empty: done; otherwise the existing entry. */
    Optional<Entry> put(Entry entry) throws IOException;

    /** Mark an entry complete if its version still has this {@code tempPath}; otherwise do nothing. */
    void complete(Entry entry) throws IOException;

    /** Retries cannot succeed: permission or table is missing. */
    final class Refused extends IOException {
        private static final long serialVersionUID = 1;

        Refused(String message, Throwable cause) {
            super(message, cause);
        }
    }
}
