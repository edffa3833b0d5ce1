package io.pcaplake.logstore;

import io.delta.storage.CloseableIterator;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.FileSystemException;
import java.util.Iterator;
import java.util.Optional;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Commits with the lock table of Delta's S3DynamoDBLogStore. May run beside that class and beside pcaplake's workers.
 *
 * <pre>
 * spark.delta.logStore.s3a.impl=io.pcaplake.logstore.DynamoDBLogStore    (s3 and s3n too: one table here)
 * spark.pcaplake.logstore.table=delta_log                                (see {@link Options})
 * </pre>
 *
 * The steps of a commit, in the words of docs/commit-api.md:
 *
 * <pre>
 * 1  T, a temp object with the bytes of N.json
 * 2  E(N) in the lock table, if absent: names T
 * 3  N.json, the same bytes, if absent
 * 4  E(N) complete
 * </pre>
 *
 * After step 2 any process can finish the commit, and each process that finds E(N) incomplete does. No process completes it
 * before N.json exists.
 */
public class DynamoDBLogStore extends PutIfAbsentLogStore {
    private static final Logger LOG = LoggerFactory.getLogger(DynamoDBLogStore.class);
    private static final int LOOKS = 4; // for N.json, while a running commit may still write it
    private static final long LOOK_MILLIS = 25;
    private final Options options;

    /** @throws IllegalArgumentException if options contradict each other */
    public DynamoDBLogStore(Configuration conf) {
        super(conf);
        options = Options.of(conf);
    }

    @Override
    public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration conf) throws IOException {
        Path file = resolvePathOnPhysicalStorage(path, conf);
        if (overwrite || !Entry.isVersion(file)) {
            super.write(path, actions, overwrite, conf);
        } else {
            commit(objects(file, conf), file, bytes(actions));
        }
    }

    @Override
    public Iterator<FileStatus> listFrom(Path path, Configuration conf) throws IOException {
        Path file = resolvePathOnPhysicalStorage(path, conf);
        Path log = file.getParent();
        if (Entry.isLog(log)) {
            Optional<Entry> newest = lockTable().newest(Entry.tablePath(log.getParent()));
            if (newest.isPresent() && !newest.get().complete()) {
                repair(objects(file, conf), log, newest.get());
            }
        }
        return super.listFrom(path, conf);
    }

    @Override
    public CloseableIterator<String> read(Path path, Configuration conf) throws IOException {
        try {
            return super.read(path, conf);
        } catch (FileNotFoundException error) {
            Path file = resolvePathOnPhysicalStorage(path, conf);
            if (!Entry.isVersion(file) || !finished(objects(file, conf), file)) {
                throw error;
            }
            return super.read(path, conf);
        }
    }

    /** The lock table; the first call creates the client. */
    LockTable lockTable() {
        return DynamoLockTable.of(options);
    }

    /** The retries of one commit. */
    Patience patience() {
        return new Patience();
    }

    private void commit(ObjectStore objects, Path file, byte[] data) throws IOException {
        Path log = file.getParent();
        Entry mine = Entry.begun(file);
        before(objects, file);
        objects.put(new Path(log, mine.tempPath()), data);
        Patience patience = patience();
        claim(patience, objects, log, mine);
        boolean made = patience.make(objects, file, data);
        complete(mine);
        if (!made) { // a writer without the lock table was first
            throw new FileAlreadyExistsException(file.toString());
        }
        if (belowHorizon(objects, log, mine.version())) {
            throw new IOException(file + " lies below a checkpoint, where no reader looks: this process was suspended while"
                    + " others committed. It may have been committed before; check the table's history, or run it again");
        }
    }

    /** Check that version N-1 exists, or complete it. */
    private void before(ObjectStore objects, Path file) throws IOException {
        long version = Long.parseLong(file.getName().substring(0, 20));
        Path log = file.getParent();
        if (version == 0) {
            Optional<Entry> old = lockTable().get(Entry.tablePath(log.getParent()), file.getName());
            if (old.isPresent() && old.get().complete() && !objects.exists(file)) {
                throw new FileSystemException("the lock table has entries of an earlier table at "
                        + log.getParent() + ": delete them, or use another path");
            }
            return;
        }
        Path previous = new Path(log, Entry.fileName(version - 1));
        Optional<Entry> entry = lockTable().get(Entry.tablePath(log.getParent()), previous.getName());
        if (entry.isPresent() && !entry.get().complete()) {
            repair(objects, log, entry.get());
        } else if (entry.isEmpty() && !objects.exists(previous)) { // that of a complete one is there, as step 4 says
            throw new FileSystemException("there is no " + previous + " to follow: the table was deleted, or its log was");
        }
    }

    /** Step 2. FileAlreadyExistsException when another writer has the version; its N.json exists then. */
    private void claim(Patience patience, ObjectStore objects, Path log, Entry mine) throws IOException {
        while (true) {
            try {
                Optional<Entry> other = lockTable().put(mine);
                if (other.isPresent() && !other.get().tempPath().equals(mine.tempPath())) {
                    if (!other.get().complete()) {
                        repair(objects, log, other.get());
                    }
                    throw new FileAlreadyExistsException(new Path(log, mine.fileName()).toString());
                }
                return;
            } catch (FileAlreadyExistsException | LockTable.Refused error) {
                throw error;
            } catch (IOException error) { // the write may have been carried out; the next answer tells
                patience.again(error);
            }
        }
    }

    /** Finish an incomplete entry of this version; false: there is none. */
    private boolean finished(ObjectStore objects, Path file) throws IOException {
        Path log = file.getParent();
        Optional<Entry> entry = lockTable().get(Entry.tablePath(log.getParent()), file.getName());
        if (entry.isEmpty() || entry.get().complete()) {
            return false;
        }
        repair(objects, log, entry.get());
        return true;
    }

    /** Finish a commit for its writer, after giving the writer a moment. */
    private void repair(ObjectStore objects, Path log, Entry entry) throws IOException {
        Path file = new Path(log, entry.fileName());
        boolean there = objects.exists(file);
        for (int look = 1; !there && look < LOOKS; look++) {
            Patience.sleep(LOOK_MILLIS);
            there = objects.exists(file);
        }
        if (!there) {
            Patience.sleep(LOOK_MILLIS);
            Path temp = new Path(log, entry.tempPath());
            byte[] data = objects.get(temp);
            if (data != null) {
                patience().make(objects, file, data); // whichever process created it, it exists
            } else if (!objects.exists(file) && !Checkpoints.cover(objects, log, entry.version())) {
                throw new IOException("the lock table has an incomplete entry for " + entry.fileName() + " of "
                        + entry.tablePath()
                        + ", and neither _delta_log/" + entry.tempPath() + " nor " + entry.fileName()
                        + " exists. Restore one of them; if both are lost, delete the item with this tablePath and"
                        + " fileName: that commit did not happen");
            }
            LOG.info("finished {} of {} for its writer", entry.fileName(), entry.tablePath());
        }
        complete(entry);
    }

    /** If this fails, a reader that finds the entry completes it, or the committer's clean-up does. */
    private void complete(Entry entry) {
        try {
            lockTable().complete(entry.completed(System.currentTimeMillis() / 1000));
        } catch (IOException error) {
            LOG.warn(
                    "{} of {} exists, its entry is left incomplete: {}",
                    entry.fileName(),
                    entry.tablePath(),
                    error.toString());
        }
    }

    /** Whether the log was cleaned up beyond this new version, so that no reader would find it. */
    private static boolean belowHorizon(ObjectStore objects, Path log, long version) throws IOException {
        boolean first = version == 0 || objects.exists(new Path(log, Entry.fileName(version - 1)));
        return !first || Checkpoints.cover(objects, log, version);
    }
}
