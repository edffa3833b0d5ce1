package io.pcaplake.logstore;

import io.delta.storage.CloseableIterator;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.FileSystemException;
import java.util.Iterator;
import java.util.Optional;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Versions made under the lock table of Delta's S3DynamoDBLogStore, beside which it may run, and beside pcaplake's workers.
 *
 * <pre>
 * spark.delta.logStore.s3a.impl=io.pcaplake.logstore.DynamoDBLogStore    (s3 and s3n too: they are one table here)
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
 * From 2 on anybody can finish it, and whoever finds E(N) incomplete does. Nobody completes it before N.json is there.
 */
public class DynamoDBLogStore extends PutIfAbsentLogStore {
    private static final Logger LOG = LoggerFactory.getLogger(DynamoDBLogStore.class);
    private static final int LOOKS = 4; // at N.json, within the time that a commit which is under way gets
    private static final long LOOK_MILLIS = 25;
    private static final String LAST_CHECKPOINT = "_last_checkpoint";
    private static final Pattern CHECKPOINT_VERSION = Pattern.compile("\"version\"\\s*:\\s*(\\d+)");
    private final Options options;

    /** @throws IllegalArgumentException where options contradict each other */
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
            Optional<Entry> newest = arbiter().newest(Entry.tablePath(log.getParent()));
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

    /** The lock table; the first call makes the client. */
    Arbiter arbiter() {
        return DynamoArbiter.of(options);
    }

    /** How long a commit is tried. */
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
        if (!made) { // by a writer that does not ask the lock table
            throw new FileAlreadyExistsException(file.toString());
        }
        if (belowHorizon(objects, log, mine.version())) {
            throw new IOException(file + " lies below a checkpoint, where no reader looks: this process stood still while"
                    + " others went on. Perhaps it was committed before; look at the table's history, or run it again");
        }
    }

    /** Version N-1 is there, or is made now. */
    private void before(ObjectStore objects, Path file) throws IOException {
        long version = Long.parseLong(file.getName().substring(0, 20));
        Path log = file.getParent();
        if (version == 0) {
            Optional<Entry> old = arbiter().get(Entry.tablePath(log.getParent()), file.getName());
            if (old.isPresent() && old.get().complete() && !objects.exists(file)) {
                throw new FileSystemException("the lock table has entries of a table that was at "
                        + log.getParent() + " before: delete them, or take another path");
            }
            return;
        }
        Path previous = new Path(log, Entry.fileName(version - 1));
        Optional<Entry> entry = arbiter().get(Entry.tablePath(log.getParent()), previous.getName());
        if (entry.isPresent() && !entry.get().complete()) {
            repair(objects, log, entry.get());
        } else if (entry.isEmpty() && !objects.exists(previous)) { // that of a complete one is there, as step 4 says
            throw new FileSystemException("there is no " + previous + " to follow: the table was deleted, or its log was");
        }
    }

    /** Step 2. FileAlreadyExistsException when the version is somebody else's, whose N.json is there then. */
    private void claim(Patience patience, ObjectStore objects, Path log, Entry mine) throws IOException {
        while (true) {
            try {
                Optional<Entry> other = arbiter().put(mine);
                if (other.isPresent() && !other.get().tempPath().equals(mine.tempPath())) {
                    if (!other.get().complete()) {
                        repair(objects, log, other.get());
                    }
                    throw new FileAlreadyExistsException(new Path(log, mine.fileName()).toString());
                }
                return;
            } catch (FileAlreadyExistsException | Arbiter.Refused error) {
                throw error;
            } catch (IOException error) { // it may have been carried out; the next answer tells
                patience.again(error);
            }
        }
    }

    /** Is there an incomplete entry of this version? It is finished then. */
    private boolean finished(ObjectStore objects, Path file) throws IOException {
        Path log = file.getParent();
        Optional<Entry> entry = arbiter().get(Entry.tablePath(log.getParent()), file.getName());
        if (entry.isEmpty() || entry.get().complete()) {
            return false;
        }
        repair(objects, log, entry.get());
        return true;
    }

    /** What an entry's writer has left to do, if it is not done in a moment. */
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
                patience().make(objects, file, data); // whoever made it: it is there
            } else if (!objects.exists(file) && lastCheckpoint(objects, log) < entry.version()) {
                throw new IOException("the lock table has " + entry.fileName() + " of " + entry.tablePath()
                        + " begun, and neither _delta_log/" + entry.tempPath() + " nor " + entry.fileName()
                        + " is there. Restore one of them; if both are lost, delete the item with this tablePath and"
                        + " fileName: that commit never was");
            }
            LOG.info("finished {} of {} for its writer", entry.fileName(), entry.tablePath());
        }
        complete(entry);
    }

    /** Where it fails, anybody completes it who finds it, or the committer's clean-up does. */
    private void complete(Entry entry) {
        try {
            arbiter().complete(entry.completed(System.currentTimeMillis() / 1000));
        } catch (IOException error) {
            LOG.warn("{} of {} is there, its entry is left incomplete: {}", entry.fileName(), entry.tablePath(), error.toString());
        }
    }

    /** Has the log been cleaned up so far that nobody reads this version, which was made just now? */
    private static boolean belowHorizon(ObjectStore objects, Path log, long version) throws IOException {
        boolean first = version == 0 || objects.exists(new Path(log, Entry.fileName(version - 1)));
        return !first || lastCheckpoint(objects, log) >= version;
    }

    /** The version that {@code _last_checkpoint} names; -1: there is none. */
    private static long lastCheckpoint(ObjectStore objects, Path log) throws IOException {
        byte[] last = objects.get(new Path(log, LAST_CHECKPOINT));
        if (last == null) {
            return -1;
        }
        Matcher found = CHECKPOINT_VERSION.matcher(new String(last, StandardCharsets.UTF_8));
        return found.find() ? Long.parseLong(found.group(1)) : -1;
    }
}
