package io.pcaplake.logstore;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Spellings, items on the wire, options, and tables in a folder. */
class PartsTest {
    @TempDir
    java.nio.file.Path folder;

    @ParameterizedTest
    @CsvSource({
        "s3a://b/x/t, s3a://b/x/t", "s3://b/x/t, s3a://b/x/t", "s3n://b/x/t, s3a://b/x/t",
        "s3://key:secret@b/x/t, s3a://b/x/t", "s3a://b/x//t/, s3a://b/x/t", "s3a://b/a b ü/t, s3a://b/a b ü/t",
        "s3://b_c.d/t, s3a://b_c.d/t",
    })
    void oneSpelling(String given, String spelled) {
        assertEquals(spelled, Entry.tablePath(new Path(given)));
    }

    @Test
    void onlyVersionsHaveEntries() {
        Path log = new Path("s3a://b/t/_delta_log");
        assertTrue(Entry.isVersion(new Path(log, Entry.fileName(12))));
        for (String name : List.of("_last_checkpoint", "00000000000000000012.crc", "12.json", "00000000000000000012.checkpoint.parquet")) {
            assertFalse(Entry.isVersion(new Path(log, name)), name);
        }
        assertFalse(Entry.isVersion(new Path("s3a://b/t", Entry.fileName(12))));
    }

    @Test
    void itemsAreThoseOfDelta() throws IOException {
        Entry begun = Entry.begun(new Path("s3://b/t/_delta_log/" + Entry.fileName(3)));
        var item = DynamoLockTable.item(begun);
        assertEquals(Set.of("tablePath", "fileName", "tempPath", "complete"), item.keySet());
        assertEquals("false", item.get("complete").s());
        assertEquals(begun, DynamoLockTable.entry(item));
        var completed = DynamoLockTable.item(begun.completed(1_000));
        assertEquals("true", completed.get("complete").s());
        assertEquals("87400", completed.get("expireTime").n());
        assertEquals(begun.completed(1_000), DynamoLockTable.entry(completed));
        item.remove("tempPath");
        assertThrows(IOException.class, () -> DynamoLockTable.entry(item));
    }

    @Test
    void options() {
        Configuration conf = new Configuration(false);
        assertEquals(new Options("delta_log", "us-east-1", null, null), Options.of(conf));
        conf.set("spark.io.delta.storage.S3DynamoDBLogStore.ddb.tableName", "locks");
        conf.set("spark.io.delta.storage.S3DynamoDBLogStore.ddb.region", "eu-west-1");
        assertEquals(new Options("locks", "eu-west-1", null, null), Options.of(conf));
        conf.set("spark.pcaplake.logstore.region", "eu-west-1");
        conf.set("spark.pcaplake.logstore.endpoint", "endpoint");
        assertEquals(new Options("locks", "eu-west-1", "endpoint", null), Options.of(conf));
        conf.set("spark.pcaplake.logstore.table", "other");
        assertThrows(IllegalArgumentException.class, () -> Options.of(conf));
    }

    @Test
    void credentialsOfTheFirstSdkAreRefused() {
        Configuration conf = new Configuration(false);
        conf.set("spark.io.delta.storage.S3DynamoDBLogStore.credentials.provider", "com.amazonaws.auth.X");
        assertThrows(IllegalArgumentException.class, () -> Options.of(conf));
    }

    @Test
    void aFolderHasEachVersionOnce() throws Exception {
        Configuration conf = new Configuration();
        Path file = new Path(folder.toUri().toString(), "t/_delta_log/" + Entry.fileName(0));
        var threads = Executors.newFixedThreadPool(8);
        CyclicBarrier together = new CyclicBarrier(8);
        List<Future<Integer>> all = new ArrayList<>();
        for (int writer = 0; writer < 8; writer++) {
            String action = "of " + writer;
            all.add(threads.submit(() -> {
                together.await();
                try {
                    new PutIfAbsentLogStore(conf).write(file, List.of(action).iterator(), false, conf);
                    return 1;
                } catch (FileAlreadyExistsException error) {
                    return 0;
                }
            }));
        }
        int winners = 0;
        for (Future<Integer> one : all) {
            winners += one.get();
        }
        threads.shutdown();
        assertEquals(1, winners);
        try (var names = Files.list(folder.resolve("t/_delta_log"))) {
            assertEquals(1, names.count(), "a temporary file was left");
        }
    }

    @Test
    void whatMayBeOverwrittenIs() throws IOException {
        Configuration conf = new Configuration();
        Path file = new Path(folder.toUri().toString(), "t/_delta_log/_last_checkpoint");
        PutIfAbsentLogStore store = new PutIfAbsentLogStore(conf);
        for (String line : List.of("one", "two")) {
            store.write(file, List.of(line).iterator(), true, conf);
            try (var lines = store.read(file, conf)) {
                assertEquals(line, lines.next());
            }
        }
        assertTrue(store.isPartialWriteVisible(file, conf));
    }
}
