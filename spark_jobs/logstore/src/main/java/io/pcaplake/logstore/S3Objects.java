package io.pcaplake.logstore;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.util.List;
import java.util.stream.Stream;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathIOException;

/**
 * Objects through S3A. Its {@code create(path, false)} checks first and puts later, so of eight writers at once eight succeed;
 * this class uses its conditional create, a PUT with {@code If-None-Match: *}.
 */
final class S3Objects implements ObjectStore {
    private static final String CONDITIONAL = "fs.option.create.conditional.overwrite";
    private static final String SKIP_CHECKS = "fs.s3a.create.performance"; // no requests for what the condition decides
    private final FileSystem fs;

    S3Objects(FileSystem fs) {
        this.fs = fs;
    }

    @Override
    public boolean putIfAbsent(Path path, byte[] data) throws IOException {
        try {
            FSDataOutputStreamBuilder<?, ?> builder = fs.createFile(path);
            builder.recursive().must(CONDITIONAL, true);
            write(builder, data);
            return true;
        } catch (FileAlreadyExistsException error) {
            return false;
        } catch (PathIOException error) {
            // S3A's exception for 412 is in hadoop-aws, which is not needed to compile this class
            if (error.getClass().getSimpleName().equals("RemoteFileChangedException")) {
                return false;
            }
            throw error;
        }
    }

    @Override
    public void put(Path path, byte[] data) throws IOException {
        FSDataOutputStreamBuilder<?, ?> builder = fs.createFile(path);
        builder.recursive().overwrite(true).opt(SKIP_CHECKS, true);
        write(builder, data);
    }

    private static void write(FSDataOutputStreamBuilder<?, ?> builder, byte[] data) throws IOException {
        try (FSDataOutputStream out = (FSDataOutputStream) builder.build()) {
            out.write(data);
        }
    }

    @Override
    public byte[] get(Path path) throws IOException {
        try (FSDataInputStream in = fs.open(path)) {
            return in.readAllBytes();
        } catch (FileNotFoundException error) {
            return null;
        }
    }

    @Override
    public boolean exists(Path path) throws IOException {
        return fs.exists(path);
    }

    @Override
    public List<String> names(Path folder) throws IOException {
        return Stream.of(fs.listStatus(folder)).map(one -> one.getPath().getName()).toList();
    }
}
