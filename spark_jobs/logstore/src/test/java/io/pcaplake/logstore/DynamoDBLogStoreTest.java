package io.pcaplake.logstore;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.FileSystemException;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.Callable;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.hadoop.fs.Path;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

class DynamoDBLogStoreTest {
    private static final String[] STEPS = {"temp", "entry", "version", "complete"};
    private final Scene scene = new Scene();

    @Test
    void aCommitIsFourSteps() throws IOException {
        scene.writer().commit(0, "a");
        Entry entry = scene.entries.get(Entry.fileName(0));
        assertEquals(Scene.TABLE, entry.tablePath());
        assertTrue(entry.tempPath().matches("\\.tmp/0{20}\\.json\\.[0-9a-f-]{36}"));
        byte[] temp = scene.objects.get(new Path(Scene.LOG, entry.tempPath()).toString());
        assertArrayEquals(temp, scene.objects.get(Scene.file(0).toString()));
        assertEquals(List.of("a"), scene.versions());
    }

    @Test
    void aVersionIsMadeOnce() throws IOException {
        scene.writer().commit(0, "a");
        assertThrows(FileAlreadyExistsException.class, () -> scene.writer().commit(0, "b"));
        assertEquals(List.of("a"), scene.versions());
    }

    /** The next reader or writer completes the commit if that is possible, and the writer gets its version. */
    @ParameterizedTest
    @CsvSource({"temp,false", "entry,false", "version,false", "complete,false", "temp,true", "entry,true", "version,true", "complete,true"})
    void deadAtAStep(String step, boolean after) throws IOException {
        for (boolean reads : new boolean[] {true, false}) {
            Scene here = new Scene();
            here.writer().commit(0, "a");
            Scene.Fault fault = after ? Scene.killedAfter(step) : Scene.killedBefore(step);
            assertThrows(Scene.Killed.class, () -> here.writer(fault).commit(1, "b"));
            boolean begun = here.entries.containsKey(Entry.fileName(1));
            if (reads) {
                here.writer().look();
                assertEquals(begun ? List.of("a", "b") : List.of("a"), here.versions());
            }
            if (begun) {
                assertThrows(FileAlreadyExistsException.class, () -> here.writer().commit(1, "c"));
            }
            here.writer().commit(begun ? 2 : 1, "c");
            assertEquals(begun ? List.of("a", "b", "c") : List.of("a", "c"), here.versions());
        }
    }

    /** A writer whose snapshot has version 1 by reading N.json itself goes on with version 2. */
    @Test
    void theVersionBeforeIsFinishedByTheNextWriter() throws IOException {
        scene.writer().commit(0, "a");
        scene.left(1, "b", true, false);
        scene.writer().commit(2, "c");
        assertEquals(List.of("a", "b", "c"), scene.versions());
    }

    @ParameterizedTest
    @CsvSource({"entry,false", "version,false", "complete,false", "entry,true", "version,true", "complete,true"})
    void anAnswerIsLost(String step, boolean carriedOut) throws IOException {
        scene.writer().commit(0, "a");
        scene.writer(Scene.lost(step, carriedOut)).commit(1, "b");
        scene.writer().commit(2, "c");
        assertEquals(List.of("a", "b", "c"), scene.versions());
    }

    /** Nothing has happened yet: the caller may retry. */
    @Test
    void withoutATempObjectNothingBegins() throws IOException {
        assertThrows(IOException.class, () -> scene.writer(Scene.lost("temp", false)).commit(0, "a"));
        assertTrue(scene.entries.isEmpty());
        scene.writer().commit(0, "a");
        assertEquals(List.of("a"), scene.versions());
    }

    @Test
    void aVersionOfAWriterWithoutTheLockTableIsNotOverwritten() throws IOException {
        scene.writer().commit(0, "a");
        scene.objects.put(Scene.file(1).toString(), "foreign\n".getBytes(StandardCharsets.UTF_8));
        assertThrows(FileAlreadyExistsException.class, () -> scene.writer().commit(1, "b"));
        scene.writer().commit(2, "c");
        assertEquals(List.of("a", "foreign", "c"), scene.versions());
    }

    /** A reader did not wait and created N.json from our temp object, so our own put is refused. */
    @Test
    void repairedInFlight() throws IOException {
        scene.writer().commit(0, "a");
        Scene.Fault slow = new Scene.Fault() {
            @Override public void before(String request) throws IOException {
                if (request.equals("version")) {
                    scene.writer().look();
                }
            }

            @Override public void after(String request) {}
        };
        scene.writer(slow).commit(1, "b");
        assertEquals(List.of("a", "b"), scene.versions());
    }

    @Test
    void anEntryWithoutObjectsCannotBeCompleted() throws IOException {
        scene.writer().commit(0, "a");
        Entry lost = scene.left(1, "b", false, false);
        IOException error = assertThrows(IOException.class, () -> scene.writer().look());
        assertTrue(error.getMessage().contains(lost.tempPath()), error.getMessage());
        assertFalse(scene.entries.get(lost.fileName()).complete());
    }

    @Test
    void anEntryBelowACheckpointIsOnlyCompleted() throws IOException {
        Entry old = scene.left(7, "b", false, false);
        scene.cleanedUpTo = 9;
        scene.objects.put(new Path(Scene.LOG, "_last_checkpoint").toString(), "{\"version\":9}".getBytes(StandardCharsets.UTF_8));
        scene.writer().look();
        assertTrue(scene.entries.get(old.fileName()).complete());
    }

    @Test
    void aWriterThatStoodStillIsToldSo() throws IOException {
        scene.writer().commit(0, "a");
        Scene.Fault frozen = new Scene.Fault() {
            @Override public void before(String request) {
                if (request.equals("version")) { // meanwhile: others commit, a checkpoint, clean-up, the entry expires
                    scene.objects.remove(Scene.file(0).toString());
                    scene.objects.put(new Path(Scene.LOG, "_last_checkpoint").toString(), "{\"version\":40}".getBytes(StandardCharsets.UTF_8));
                }
            }

            @Override public void after(String request) {}
        };
        IOException error = assertThrows(IOException.class, () -> scene.writer(frozen).commit(1, "b"));
        assertTrue(error.getMessage().contains("below a checkpoint"), error.getMessage());
    }

    /** An older checkpointer writes its hint late: the listing decides, as in the worker's log store. */
    @ParameterizedTest
    @ValueSource(strings = {
        "00000000000000000040.checkpoint.parquet",
        "00000000000000000040.checkpoint.0000000001.0000000001.parquet",
        "00000000000000000040.checkpoint.3a0d65cd-4056-49b8-937b-95f9e3ee90e5.parquet"})
    void aWriterThatStoodStillIsToldSoWhereTheHintWasRolledBack(String checkpoint) throws IOException {
        for (int version = 0; version < 3; version++) {
            scene.writer().commit(version, "a" + version);
        }
        Scene.Fault frozen = new Scene.Fault() {
            @Override public void before(String request) {
                if (request.equals("version")) { // meanwhile: commits, a checkpoint, clean-up; then the late writes
                    scene.objects.remove(Scene.file(0).toString());
                    scene.objects.remove(Scene.file(1).toString()); // and a repair creates 2.json again
                    scene.checkpoint(checkpoint);
                    scene.hint(1);
                }
            }

            @Override public void after(String request) {}
        };
        IOException error = assertThrows(IOException.class, () -> scene.writer(frozen).commit(3, "b"));
        assertTrue(error.getMessage().contains("below a checkpoint"), error.getMessage());
    }

    @Test
    void anEntryBelowACheckpointIsOnlyCompletedWhereTheHintWasRolledBack() throws IOException {
        Entry old = scene.left(7, "b", false, false);
        scene.cleanedUpTo = 9;
        scene.hint(3);
        scene.checkpoint("00000000000000000009.checkpoint.0000000001.0000000002.parquet");
        assertThrows(IOException.class, () -> scene.writer().look(), "half a checkpoint holds nothing");
        scene.checkpoint("00000000000000000009.checkpoint.0000000002.0000000002.parquet");
        scene.writer().look();
        assertTrue(scene.entries.get(old.fileName()).complete());
    }

    /** The version of the hint exists, so nothing above it was cleaned up: the entry's commit did not happen. */
    @Test
    void anEntryAboveAnOldHintIsNotCompleted() throws IOException {
        for (int version = 0; version < 3; version++) {
            scene.writer().commit(version, "a" + version);
        }
        scene.hint(1);
        Entry lost = scene.left(3, "b", false, false);
        assertThrows(IOException.class, () -> scene.writer().look());
        assertFalse(scene.entries.get(lost.fileName()).complete());
    }

    @Test
    void aGapIsNotMade() {
        assertThrows(FileSystemException.class, () -> scene.writer().commit(3, "a"));
        assertTrue(scene.entries.isEmpty());
    }

    @Test
    void aTableThatWasThereBefore() throws IOException {
        scene.writer().commit(0, "a");
        scene.objects.clear();
        assertThrows(FileSystemException.class, () -> scene.writer().commit(0, "b"));
    }

    /** Each of eight writers wants every version: one gets it, the others see that it is taken. */
    @Test
    void races() throws Exception {
        var threads = Executors.newFixedThreadPool(8);
        for (int version = 0; version < 40; version++) {
            long wanted = version;
            CyclicBarrier together = new CyclicBarrier(8);
            List<Future<Integer>> all = new ArrayList<>();
            for (int writer = 0; writer < 8; writer++) {
                String action = version + " of " + writer;
                Callable<Integer> one = () -> {
                    together.await();
                    try {
                        scene.writer().commit(wanted, action);
                        return 1;
                    } catch (FileAlreadyExistsException error) {
                        return 0;
                    }
                };
                all.add(threads.submit(one));
            }
            int winners = 0;
            for (Future<Integer> one : all) {
                winners += one.get();
            }
            assertEquals(1, winners);
        }
        threads.shutdown();
        assertEquals(40, scene.versions().size());
    }

    /** Random kills and lost answers: every acknowledged commit is in the log, and none is in it twice. */
    @ParameterizedTest
    @ValueSource(ints = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12})
    void schedules(int seed) throws IOException {
        Random random = new Random(seed);
        List<String> told = new ArrayList<>();
        for (int turn = 0; turn < 40; turn++) {
            String step = STEPS[random.nextInt(STEPS.length)];
            Scene.Fault fault = switch (random.nextInt(5)) {
                case 0 -> Scene.killedBefore(step);
                case 1 -> Scene.killedAfter(step);
                case 2 -> Scene.lost(step, false);
                case 3 -> Scene.lost(step, true);
                default -> Scene.NONE;
            };
            String action = "turn " + turn;
            try {
                for (long version = random.nextInt(2) == 0 ? 0 : scene.entries.size(); ; version++) {
                    try {
                        scene.writer(fault).commit(version, action);
                        told.add(action);
                        break;
                    } catch (FileAlreadyExistsException taken) {
                        continue;
                    }
                }
            } catch (Scene.Killed | IOException unknown) {
                continue;
            }
        }
        scene.writer().look();
        scene.writer().commit(scene.entries.size(), "last");
        assertTrue(scene.versions().containsAll(told));
    }
}
