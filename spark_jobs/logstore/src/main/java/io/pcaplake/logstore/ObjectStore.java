package io.pcaplake.logstore;

import java.io.IOException;
import java.util.List;
import org.apache.hadoop.fs.Path;

/** Complete objects. After an {@link IOException} of a write it is unknown whether the write was carried out. */
interface ObjectStore {
    /** True: created; false: an object exists, possibly this one, created by a repeated request. */
    boolean putIfAbsent(Path path, byte[] data) throws IOException;

    /** Create or replace. */
    void put(Path path, byte[] data) throws IOException;

    /** The whole object, or null. */
    byte[] get(Path path) throws IOException;

    boolean exists(Path path) throws IOException;

    /** The names in a folder, in any order; may include folders. */
    List<String> names(Path folder) throws IOException;
}
