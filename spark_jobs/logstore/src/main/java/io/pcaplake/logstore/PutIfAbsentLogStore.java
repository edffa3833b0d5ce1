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
 * Commits with S3's conditional put, or with a hard link for a table in a folder of this machine. This is sufficient if every
 * writer commits this way, as pcaplake's workers do with {@code log_store: put-if-absent}.
 *
 * <pre>spark.delta.logStore.s3a.impl=io.pcaplake.logstore.PutIfAbsentLogStore</pre>
 */
public class PutIfAbsentLogStore extends HadoopFileSystemLogStore {
    /** Delta creates one for every table that it opens, so this sends no requests. */
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

    /** Objects appear complete. Files that Spark writes in other ways, such as checkpoints, do not. */
    @Override
    public Boolean isPartialWriteVisible(Path path, Configuration conf) throws IOException {
        return !Entry.isS3(path.getFileSystem(conf).getUri().getScheme());
    }

    /** The store for objects beside {@code file}. */
    ObjectStore objects(Path file, Configuration conf) throws IOException {
        FileSystem fs = file.getFileSystem(conf);
        String scheme = fs.getUri().getScheme();
        if (Entry.isS3(scheme)) {
            return new S3Objects(fs);
        }
        if ("file".equals(scheme)) {
            return new LocalObjects();
        }
        throw new IOException(file + ": this log store supports s3a:// and file://, not " + scheme
                + "://; configure spark.delta.logStore." + scheme + ".impl with one that does");
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
