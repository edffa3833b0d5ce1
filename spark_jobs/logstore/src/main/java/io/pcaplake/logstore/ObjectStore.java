package io.pcaplake.logstore;

import java.io.IOException;
import org.apache.hadoop.fs.Path;

/** Whole objects. An {@link IOException} of a write leaves it unknown whether it was carried out. */
interface ObjectStore {
    /** True: made; false: there is one already, which may be this one, put by a request that was repeated. */
    boolean putIfAbsent(Path path, byte[] data) throws IOException;

    /** Make or replace. */
    void put(Path path, byte[] data) throws IOException;

    /** All of it; null: there is none. */
    byte[] get(Path path) throws IOException;

    boolean exists(Path path) throws IOException;
}
