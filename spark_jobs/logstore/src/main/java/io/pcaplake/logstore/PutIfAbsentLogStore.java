package io.pcaplake.logstore;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Arrays;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Versions made by S3's conditional put, or by a hard link where the table is in a folder of this machine: enough where
 * every writer does just this, as pcaplake's workers do with {@code log_store: put-if-absent}.
 *
 * <pre>spark.delta.logStore.s3a.impl=io.pcaplake.logstore.PutIfAbsentLogStore</pre>
 */
public class PutIfAbsentLogStore extends HadoopFileSystemLogStore {
    /** Delta makes one for every table that it opens: nothing is asked of anybody here. */
    public PutIfAbsentLogStore(Configuration conf) {
        super(conf);
    }

    @Override
    public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration conf) throws IOException {
        Path file = resolvePathOnPhysicalStorage(path, conf);
        ObjectStore objects = objects(file, conf);
        byte[] data = bytes(actions);
        if (overwrite) {
            objects.put(file, data);
        } else if (!new Patience().make(objects, file, data)) {
            throw new FileAlreadyExistsException(path.toString());
        }
    }

    /** Objects appear whole. Files that Spark writes by other ways than this, such as checkpoints, do not. */
    @Override
    public Boolean isPartialWriteVisible(Path path, Configuration conf) throws IOException {
        return !Entry.isS3(path.getFileSystem(conf).getUri().getScheme());
    }

    /** How objects beside {@code file} are made. */
    ObjectStore objects(Path file, Configuration conf) throws IOException {
        FileSystem fs = file.getFileSystem(conf);
        String scheme = fs.getUri().getScheme();
        if (Entry.isS3(scheme)) {
            return new S3Objects(fs);
        }
        if ("file".equals(scheme)) {
            return new LocalObjects();
        }
        throw new IOException(file + ": this log store is for s3a:// and file://, not for " + scheme
                + "://; configure spark.delta.logStore." + scheme + ".impl with one that is");
    }

    static byte[] bytes(Iterator<String> actions) {
        StringBuilder text = new StringBuilder();
        actions.forEachRemaining(line -> text.append(line).append('\n'));
        return text.toString().getBytes(StandardCharsets.UTF_8);
    }

    static boolean same(byte[] found, byte[] data) {
        return Arrays.equals(found, data);
    }
}
