package io.pcaplake.logstore;

import java.io.IOException;
import java.util.Optional;

/**
 * A lock table that other programs use too. What is read is what was last written.
 *
 * <p>An {@link IOException} of a write leaves it unknown whether it was carried out; a {@link Refused} one was not, and
 * will not be. A write may be carried out more often than it is asked for, so it may be refused because of itself: look
 * whose {@code tempPath} it is.
 */
interface Arbiter {
    /** The entry of the highest version. */
    Optional<Entry> newest(String tablePath) throws IOException;

    Optional<Entry> get(String tablePath, String fileName) throws IOException;

    /** Put an entry if its version has none. Empty: done; else the entry that is there. */
    Optional<Entry> put(Entry entry) throws IOException;

    /** Mark it complete, on condition that its version still has this {@code tempPath}; else nothing happens. */
    void complete(Entry entry) throws IOException;

    /** It will not work however often it is tried: no permission, no table. */
    final class Refused extends IOException {
        private static final long serialVersionUID = 1;

        Refused(String message, Throwable cause) {
            super(message, cause);
        }
    }
}
