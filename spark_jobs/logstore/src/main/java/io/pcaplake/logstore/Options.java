package io.pcaplake.logstore;

import java.util.Objects;
import org.apache.hadoop.conf.Configuration;

/**
 * The lock table, and how to reach it.
 *
 * <pre>
 * spark.pcaplake.logstore.table        name of the table; default delta_log
 * spark.pcaplake.logstore.region       default us-east-1
 * spark.pcaplake.logstore.endpoint     default AWS's, or AWS_ENDPOINT_URL_DYNAMODB
 * spark.pcaplake.logstore.credentials  a class of the AWS SDK v2 with create(); default its provider chain
 * </pre>
 *
 * The defaults, and the names {@code spark.io.delta.storage.S3DynamoDBLogStore.ddb.tableName} and {@code ddb.region}, are those
 * of Delta's own class, so that a change of class keeps the lock table.
 */
record Options(String table, String region, String endpoint, String credentials) {
    private static final String OURS = "pcaplake.logstore.";
    private static final String STOCK = "io.delta.storage.S3DynamoDBLogStore.";

    /** @throws IllegalArgumentException if two names of one option have different values */
    static Options of(Configuration conf) {
        String credentials = found(conf, OURS + "credentials");
        if (credentials == null && found(conf, STOCK + "credentials.provider") != null) {
            throw new IllegalArgumentException("spark." + STOCK + "credentials.provider names a class of the AWS SDK v1,"
                    + " which is not available: set spark." + OURS + "credentials to a class of v2, or omit both");
        }
        return new Options(
                either(conf, OURS + "table", STOCK + "ddb.tableName", "delta_log"),
                either(conf, OURS + "region", STOCK + "ddb.region", "us-east-1"),
                found(conf, OURS + "endpoint"),
                credentials);
    }

    private static String either(Configuration conf, String ours, String stock, String otherwise) {
        String one = found(conf, ours);
        String two = found(conf, stock);
        if (one != null && two != null && !Objects.equals(one, two)) {
            throw new IllegalArgumentException("spark." + ours + " is " + one + " and spark." + stock + " is " + two
                    + ": two lock tables lose commits; set both to the same value, or only one of them");
        }
        return one != null ? one : two != null ? two : otherwise;
    }

    /** Spark passes settings with their prefix, Hadoop's configuration files have none. */
    private static String found(Configuration conf, String name) {
        String value = conf.getTrimmed("spark." + name, conf.getTrimmed(name));
        return value == null || value.isEmpty() ? null : value;
    }
}
