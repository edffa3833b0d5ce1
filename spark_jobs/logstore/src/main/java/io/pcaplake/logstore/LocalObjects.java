package io.pcaplake.logstore;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.util.List;
import java.util.UUID;
import java.util.stream.Stream;

/**
 * Files on this machine, complete and on disk before they become visible: write a temporary file beside the target, fsync it,
 * link it to the name if the name is free, fsync the folder. Hadoop's own file systems check first and rename later, which
 * overwrites a file that appeared in between.
 */
final class LocalObjects implements ObjectStore {
    @Override
    public boolean putIfAbsent(org.apache.hadoop.fs.Path path, byte[] data) throws IOException {
        Path target = local(path);
        Path temporary = written(target, data);
        boolean made = true;
        try {
            Files.createLink(target, temporary);
        } catch (FileAlreadyExistsException error) {
            made = false;
        } catch (UnsupportedOperationException error) {
            throw new IOException(target.getParent() + ": this file system has no hard links, so a file cannot be"
                    + " created only if it is absent; use another file system for the lake", error);
        } finally {
            Files.deleteIfExists(temporary);
        }
        sync(target.getParent());
        return made;
    }

    @Override
    public void put(org.apache.hadoop.fs.Path path, byte[] data) throws IOException {
        Path target = local(path);
        Path temporary = written(target, data);
        Files.deleteIfExists(target.resolveSibling("." + target.getFileName() + ".crc")); // Hadoop's checksum of the old content
        Files.move(temporary, target, StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING);
        sync(target.getParent());
    }

    @Override
    public byte[] get(org.apache.hadoop.fs.Path path) throws IOException {
        try {
            return Files.readAllBytes(local(path));
        } catch (NoSuchFileException error) {
            return null;
        }
    }

    @Override
    public boolean exists(org.apache.hadoop.fs.Path path) {
        return Files.exists(local(path));
    }

    @Override
    public List<String> names(org.apache.hadoop.fs.Path folder) throws IOException {
        try (Stream<Path> found = Files.list(local(folder))) {
            return found.map(one -> one.getFileName().toString()).toList();
        }
    }

    private static Path written(Path target, byte[] data) throws IOException {
        Files.createDirectories(target.getParent());
        Path temporary = target.resolveSibling(target.getFileName() + "." + UUID.randomUUID() + ".tmp");
        try (FileChannel out = FileChannel.open(temporary, StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE)) {
            ByteBuffer left = ByteBuffer.wrap(data);
            while (left.hasRemaining()) {
                out.write(left);
            }
            out.force(true);
        } catch (IOException error) {
            Files.deleteIfExists(temporary);
            throw error;
        }
        return temporary;
    }

    private static void sync(Path folder) throws IOException {
        try (FileChannel names = FileChannel.open(folder, StandardOpenOption.READ)) {
            names.force(true);
        }
    }

    private static Path local(org.apache.hadoop.fs.Path path) {
        return Paths.get(path.toUri().getPath());
    }
}
