package io.pcaplake.logstore;

import java.io.IOException;
import java.io.InterruptedIOException;
import java.nio.file.AccessDeniedException;
import java.util.concurrent.ThreadLocalRandom;
import org.apache.hadoop.fs.Path;

/** One commit's retries: full-jitter exponential backoff with a cap, bounded by time and not by count. */
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
     * Make an object if it is absent. False: another one is there.
     *
     * <p>A refusal alone says nothing: the client may have put twice, or a reader that found us slow was before us. So what
     * is there is compared; a commit's bytes are nobody else's, because they hold the txnId of its commitInfo.
     *
     * @throws IOException when it is unknown what came of it, after all patience
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
                reason = new IOException(path + ": somebody else was at it, and it is not there");
            } catch (InterruptedIOException | AccessDeniedException error) {
                throw error;
            } catch (IOException error) {
                reason = error;
            }
            again(reason);
        }
    }

    /** Wait a little; throws {@code reason} when there is no time left. */
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
            throw new InterruptedIOException("interrupted while a commit was under way");
        }
    }
}
