package io.pcaplake.logstore;

import java.io.IOException;
import java.io.InterruptedIOException;
import java.nio.file.AccessDeniedException;
import java.util.concurrent.ThreadLocalRandom;
import org.apache.hadoop.fs.Path;

/** The retries of one commit: exponential backoff with full jitter and a cap, limited by time and not by count. */
class Patience {
    private static final long FIRST_PAUSE = 20;
    private static final long LONGEST_PAUSE = 2_000;
    private final long deadline;
    private long pause = FIRST_PAUSE;

    Patience() {
        this(60_000);
    }

    Patience(long millis) {
        deadline = System.nanoTime() + millis * 1_000_000;
    }

    /**
     * Create an object if it is absent. False: another object exists.
     *
     * <p>A refusal alone is inconclusive: the client may have put twice, or a reader may have completed the commit first. So
     * the bytes are compared; they are unique to a commit, because they contain the txnId of its commitInfo.
     *
     * @throws IOException when the outcome is still unknown at the deadline
     */
    boolean make(ObjectStore objects, Path path, byte[] data) throws IOException {
        while (true) {
            IOException reason;
            try {
                if (objects.putIfAbsent(path, data)) {
                    return true;
                }
                byte[] found = objects.get(path);
                if (found != null) {
                    return PutIfAbsentLogStore.same(found, data);
                }
                reason = new IOException(path + ": refused because it exists, but it cannot be found");
            } catch (InterruptedIOException | AccessDeniedException error) {
                throw error;
            } catch (IOException error) {
                reason = error;
            }
            again(reason);
        }
    }

    /** Pause before a retry; throws {@code reason} after the deadline. */
    void again(IOException reason) throws IOException {
        if (System.nanoTime() >= deadline) {
            throw reason;
        }
        sleep(ThreadLocalRandom.current().nextLong(pause + 1));
        pause = Math.min(2 * pause, LONGEST_PAUSE);
    }

    static void sleep(long millis) throws InterruptedIOException {
        try {
            Thread.sleep(millis);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new InterruptedIOException("interrupted during a commit");
        }
    }
}
