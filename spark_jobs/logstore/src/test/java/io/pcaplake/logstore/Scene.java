package io.pcaplake.logstore;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentSkipListMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;

/** A table in memory, its lock table, and writers whose requests can fail: before they are carried out, or after. */
final class Scene {
    static final String TABLE = "s3a://bucket/lake/t";
    static final Path LOG = new Path(TABLE, Entry.LOG);
    final Map<String, byte[]> objects = new ConcurrentSkipListMap<>();
    final Map<String, Entry> entries = new ConcurrentSkipListMap<>();
    long cleanedUpTo = -1; // N.json of the versions up to here were deleted

    /** The process was killed. */
    static final class Killed extends Error {
        private static final long serialVersionUID = 1;
    }

    /** The faults of one writer's requests. */
    interface Fault {
        void before(String request) throws IOException;

        void after(String request) throws IOException;
    }

    static final Fault NONE = new Fault() {
        @Override public void before(String request) {}

        @Override public void after(String request) {}
    };

    static Path file(long version) {
        return new Path(LOG, Entry.fileName(version));
    }

    static Fault killedBefore(String request) {
        return new Fault() {
            @Override public void before(String one) {
                if (one.equals(request)) {
                    throw new Killed();
                }
            }

            @Override public void after(String one) {}
        };
    }

    static Fault killedAfter(String request) {
        return new Fault() {
            @Override public void before(String one) {}

            @Override public void after(String one) {
                if (one.equals(request)) {
                    throw new Killed();
                }
            }
        };
    }

    /** The first request fails, after it was carried out or before. */
    static Fault lost(String request, boolean carriedOut) {
        return new Fault() {
            private boolean done;

            private void fail(String one, boolean now) throws IOException {
                if (now && !done && one.equals(request)) {
                    done = true;
                    throw new IOException("no answer");
                }
            }

            @Override public void before(String one) throws IOException {
                fail(one, !carriedOut);
            }

            @Override public void after(String one) throws IOException {
                fail(one, carriedOut);
            }
        };
    }

    /** The log store of another process. */
    final class Writer extends DynamoDBLogStore {
        private final Fault fault;

        Writer(Fault fault) {
            super(new Configuration(false));
            this.fault = fault;
        }

        @Override public Path resolvePathOnPhysicalStorage(Path path, Configuration conf) {
            return path;
        }

        @Override Patience patience() {
            return new Patience(2_000);
        }

        @Override ObjectStore objects(Path file, Configuration conf) {
            return new Objects(fault);
        }

        @Override LockTable lockTable() {
            return new Locks(fault);
        }

        void commit(long version, String action) throws IOException {
            write(file(version), List.of(action).iterator(), false, new Configuration(false));
        }

        /** Begin as a reader does. Only the repair matters here; there is no file system to list. */
        void look() throws IOException {
            try {
                Iterator<FileStatus> found = listFrom(file(0), new Configuration(false));
                found.forEachRemaining(each -> {});
            } catch (UncheckedIOException error) {
                throw error.getCause();
            } catch (IOException error) {
                if (error.getMessage() == null || !error.getMessage().contains("No FileSystem for scheme")) {
                    throw error;
                }
            }
        }
    }

    Writer writer() {
        return new Writer(NONE);
    }

    Writer writer(Fault fault) {
        return new Writer(fault);
    }

    final class Objects implements ObjectStore {
        private final Fault fault;

        Objects(Fault fault) {
            this.fault = fault;
        }

        private static String of(Path path) {
            return path.toString().contains("/.tmp/") ? "temp" : "version";
        }

        @Override public boolean putIfAbsent(Path path, byte[] data) throws IOException {
            fault.before(of(path));
            boolean made = objects.putIfAbsent(path.toString(), data) == null;
            fault.after(of(path));
            return made;
        }

        @Override public void put(Path path, byte[] data) throws IOException {
            fault.before(of(path));
            objects.put(path.toString(), data);
            fault.after(of(path));
        }

        @Override public byte[] get(Path path) {
            return objects.get(path.toString());
        }

        @Override public boolean exists(Path path) {
            return objects.containsKey(path.toString());
        }

        @Override public List<String> names(Path folder) {
            return objects.keySet().stream().map(Path::new).filter(one -> one.getParent().equals(folder)).map(Path::getName).toList();
        }
    }

    final class Locks implements LockTable {
        private final Fault fault;

        Locks(Fault fault) {
            this.fault = fault;
        }

        @Override public Optional<Entry> newest(String tablePath) {
            return entries.values().stream().filter(one -> one.tablePath().equals(tablePath)).reduce((a, b) -> b);
        }

        @Override public Optional<Entry> get(String tablePath, String fileName) {
            return Optional.ofNullable(entries.get(fileName)).filter(one -> one.tablePath().equals(tablePath));
        }

        @Override public Optional<Entry> put(Entry entry) throws IOException {
            fault.before("entry");
            Entry other = entries.putIfAbsent(entry.fileName(), entry);
            fault.after("entry");
            return Optional.ofNullable(other);
        }

        @Override public void complete(Entry entry) throws IOException {
            fault.before("complete");
            boolean was = entry.version() <= cleanedUpTo;
            if (!was && !objects.containsKey(new Path(LOG, entry.fileName()).toString())) {
                throw new AssertionError("completed before it is there: " + entry);
            }
            entries.computeIfPresent(entry.fileName(), (name, old) -> old.tempPath().equals(entry.tempPath()) ? entry : old);
            fault.after("complete");
        }
    }

    /** The entry of a writer that died, and the objects that it had put. */
    Entry left(long version, String action, boolean temp, boolean made) {
        Entry entry = Entry.begun(file(version));
        entries.put(entry.fileName(), entry);
        if (temp) {
            objects.put(new Path(LOG, entry.tempPath()).toString(), (action + "\n").getBytes(StandardCharsets.UTF_8));
        }
        if (made) {
            objects.put(file(version).toString(), (action + "\n").getBytes(StandardCharsets.UTF_8));
        }
        return entry;
    }

    /** A checkpoint, or a part of one: an object with this name. */
    void checkpoint(String name) {
        objects.put(new Path(LOG, name).toString(), new byte[0]);
    }

    void hint(long version) {
        byte[] hint = ("{\"version\":" + version + "}").getBytes(StandardCharsets.UTF_8);
        objects.put(new Path(LOG, "_last_checkpoint").toString(), hint);
    }

    /** Version -> action. AssertionError for a gap, a duplicate action, or an incomplete entry. */
    List<String> versions() {
        Map<Long, String> found = new TreeMap<>();
        objects.forEach((path, data) -> {
            String name = new Path(path).getName();
            if (!path.contains("/.tmp/") && Entry.isVersion(name)) {
                found.put(Long.parseLong(name.substring(0, 20)), new String(data, StandardCharsets.UTF_8).trim());
            }
        });
        List<String> actions = new ArrayList<>(found.values());
        for (long version = 0; version < actions.size(); version++) {
            if (!found.containsKey(version)) {
                throw new AssertionError("a gap at " + version + " of " + found.keySet());
            }
        }
        if (actions.stream().distinct().count() != actions.size()) {
            throw new AssertionError("twice: " + actions);
        }
        entries.values().forEach(one -> {
            if (!one.complete() || one.expires() == 0) {
                throw new AssertionError("left incomplete: " + one);
            }
        });
        return actions;
    }
}
