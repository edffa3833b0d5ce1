package io.pcaplake.logstore;

import io.pcaplake.logstore.LockTable.Refused;
import java.io.IOException;
import java.net.URI;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Supplier;
import software.amazon.awssdk.auth.credentials.AwsCredentialsProvider;
import software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider;
import software.amazon.awssdk.awscore.exception.AwsServiceException;
import software.amazon.awssdk.core.exception.SdkException;
import software.amazon.awssdk.http.urlconnection.UrlConnectionHttpClient;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.dynamodb.DynamoDbClient;
import software.amazon.awssdk.services.dynamodb.model.AttributeValue;
import software.amazon.awssdk.services.dynamodb.model.ConditionalCheckFailedException;
import software.amazon.awssdk.services.dynamodb.model.QueryResponse;
import software.amazon.awssdk.services.dynamodb.model.ReturnValuesOnConditionCheckFailure;

/** The lock table that Delta's S3DynamoDBLogStore and pcaplake's workers use: a DynamoDB table. */
final class DynamoLockTable implements LockTable {
    private static final Map<Options, DynamoLockTable> SHARED = new ConcurrentHashMap<>();
    private static final Duration ATTEMPT = Duration.ofSeconds(5);
    private static final Duration CALL = Duration.ofSeconds(30);
    private final DynamoDbClient client;
    private final String table;

    private DynamoLockTable(Options options) {
        table = options.table();
        // The class path has other HTTP clients too; this one needs no threads and no further libraries.
        var builder = DynamoDbClient.builder()
                .httpClient(UrlConnectionHttpClient.builder().connectionTimeout(ATTEMPT).socketTimeout(ATTEMPT).build())
                .overrideConfiguration(o -> o.apiCallAttemptTimeout(ATTEMPT).apiCallTimeout(CALL))
                .credentialsProvider(credentials(options.credentials()))
                .region(Region.of(options.region()));
        if (options.endpoint() != null) {
            builder.endpointOverride(URI.create(options.endpoint()));
        }
        client = builder.build();
    }

    /** One client for all tables of a JVM. */
    static DynamoLockTable of(Options options) {
        return SHARED.computeIfAbsent(options, DynamoLockTable::new);
    }

    private static AwsCredentialsProvider credentials(String name) {
        if (name == null) {
            return DefaultCredentialsProvider.builder().build();
        }
        try {
            Object made = Class.forName(name).getMethod("create").invoke(null);
            return (AwsCredentialsProvider) made;
        } catch (ReflectiveOperationException | ClassCastException error) {
            throw new IllegalArgumentException("spark.pcaplake.logstore.credentials: " + name
                    + " is not a credentials provider of the AWS SDK v2 with a method create()", error);
        }
    }

    @Override
    public Optional<Entry> newest(String tablePath) throws IOException {
        Map<String, AttributeValue> start = Map.of();
        do { // Delta's own class also writes entries for other files of a log
            Map<String, AttributeValue> from = start;
            QueryResponse page = call("Query", () -> client.query(r -> r.tableName(table)
                    .consistentRead(true)
                    .scanIndexForward(false)
                    .limit(from.isEmpty() ? 1 : 100)
                    .keyConditionExpression("tablePath = :table")
                    .expressionAttributeValues(Map.of(":table", text(tablePath)))
                    .exclusiveStartKey(from.isEmpty() ? null : from)));
            for (Map<String, AttributeValue> item : page.items()) {
                if (Entry.isVersion(item.get("fileName").s())) {
                    return Optional.of(entry(item));
                }
            }
            start = page.lastEvaluatedKey();
        } while (!start.isEmpty());
        return Optional.empty();
    }

    @Override
    public Optional<Entry> get(String tablePath, String fileName) throws IOException {
        var key = Map.of("tablePath", text(tablePath), "fileName", text(fileName));
        var found = call("GetItem", () -> client.getItem(r -> r.tableName(table).key(key).consistentRead(true)));
        return found.hasItem() ? Optional.of(entry(found.item())) : Optional.empty();
    }

    @Override
    public Optional<Entry> put(Entry entry) throws IOException {
        try {
            call("PutItem", () -> client.putItem(r -> r.tableName(table)
                    .item(item(entry))
                    .conditionExpression("attribute_not_exists(fileName)")
                    .returnValuesOnConditionCheckFailure(ReturnValuesOnConditionCheckFailure.ALL_OLD)));
            return Optional.empty();
        } catch (Lost lost) {
            return lost.item.isEmpty() ? get(entry.tablePath(), entry.fileName()) : Optional.of(entry(lost.item));
        }
    }

    @Override
    public void complete(Entry entry) throws IOException {
        var key = Map.of("tablePath", text(entry.tablePath()), "fileName", text(entry.fileName()));
        var expires = AttributeValue.fromN(Long.toString(entry.expires()));
        var to = Map.of(":complete", text("true"), ":expires", expires, ":temp", text(entry.tempPath()));
        try {
            call("UpdateItem", () -> client.updateItem(r -> r.tableName(table)
                    .key(key)
                    .updateExpression("SET #complete = :complete, expireTime = :expires")
                    .conditionExpression("tempPath = :temp")
                    .expressionAttributeNames(Map.of("#complete", "complete"))
                    .expressionAttributeValues(to)));
        } catch (Lost lost) {
            return; // the entry has expired, or is another writer's
        }
    }

    /** As Delta's own class writes it: strings, and a number for {@code expireTime}. */
    static Map<String, AttributeValue> item(Entry entry) {
        var item = new HashMap<String, AttributeValue>();
        item.put("tablePath", text(entry.tablePath()));
        item.put("fileName", text(entry.fileName()));
        item.put("tempPath", text(entry.tempPath()));
        item.put("complete", text(Boolean.toString(entry.complete())));
        if (entry.complete()) {
            item.put("expireTime", AttributeValue.fromN(Long.toString(entry.expires())));
        }
        return item;
    }

    static Entry entry(Map<String, AttributeValue> item) throws IOException {
        AttributeValue temp = item.get("tempPath");
        if (temp == null || temp.s() == null || temp.s().isEmpty()) {
            throw new IOException("the lock table has an item that no Delta log store wrote: " + item + ". Delete it if"
                    + " its fileName is in the table's _delta_log, otherwise correct its tempPath");
        }
        boolean complete = item.containsKey("complete") && "true".equals(item.get("complete").s());
        AttributeValue expires = item.get("expireTime");
        long when = expires == null || expires.n() == null ? 0 : Long.parseLong(expires.n());
        return new Entry(item.get("tablePath").s(), item.get("fileName").s(), temp.s(), complete, when);
    }

    private static AttributeValue text(String value) {
        return AttributeValue.fromS(value);
    }

    private <T> T call(String operation, Supplier<T> request) throws IOException {
        String where = "DynamoDB " + operation + " on " + table;
        try {
            return request.get();
        } catch (ConditionalCheckFailedException error) {
            throw new Lost(error.hasItem() ? error.item() : Map.of());
        } catch (AwsServiceException error) {
            boolean later = error.statusCode() >= 500 || error.isThrottlingException();
            throw later
                    ? new IOException(where + ": " + error.getMessage(), error)
                    : new Refused(where + ": " + error.getMessage() + ": check the table's name, region and permissions", error);
        } catch (SdkException error) {
            throw new IOException(where + ": " + error.getMessage(), error);
        }
    }

    /** The condition of a write did not hold. */
    private static final class Lost extends IOException {
        private static final long serialVersionUID = 1;
        private final transient Map<String, AttributeValue> item;

        Lost(Map<String, AttributeValue> item) {
            super("the condition of a write did not hold");
            this.item = item;
        }
    }
}
