package io.pcaplake.logstore;

import java.util.Objects;
import org.apache.hadoop.conf.Configuration;

/**
 * Which lock table, and how it is reached.
 *
 * <pre>
 * spark.pcaplake.logstore.table        its name; delta_log
 * spark.pcaplake.logstore.region       us-east-1
 * spark.pcaplake.logstore.endpoint     AWS's, or what AWS_ENDPOINT_URL_DYNAMODB says
 * spark.pcaplake.logstore.credentials  a class of the AWS SDK v2 with create(); its default chain
 * </pre>
 *
 * Defaults, and the names {@code spark.io.delta.storage.S3DynamoDBLogStore.ddb.tableName} and {@code ddb.region}, are
 * those of Delta's own class, so that who changes from one class to the other keeps the lock table.
 */
record Options(String table, String region, String endpoint, String credentials) {
    private static final String OURS = "pcaplake.logstore.";
    private static final String STOCK = "io.delta.storage.S3DynamoDBLogStore.";

    /** @throws IllegalArgumentException where two names of one option disagree */
    static Options of(Configuration conf) {
        String credentials = found(conf, OURS + "credentials");
        if (credentials == null && found(conf, STOCK + "credentials.provider") != null) {
            throw new IllegalArgumentException("spark." + STOCK + "credentials.provider names a class of the AWS SDK v1,"
                    + " which is not here: set spark." + OURS + "credentials to one of v2, or leave both away");
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
                    + ": two lock tables lose commits; set them alike, or one of them");
        }
        return one != null ? one : two != null ? two : otherwise;
    }

    /** Spark hands its settings on with their prefix, Hadoop's own files have none. */
    private static String found(Configuration conf, String name) {
        String value = conf.getTrimmed("spark." + name, conf.getTrimmed(name));
        return value == null || value.isEmpty() ? null : value;
    }
}
