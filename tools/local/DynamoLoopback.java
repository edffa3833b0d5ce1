import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;
import software.amazon.dynamodb.services.local.main.ServerRunner;
import software.amazon.dynamodb.services.local.server.DynamoDBProxyServer;

/** Runs DynamoDB Local on loopback only: it has no option for the address and would listen on every interface. */
public final class DynamoLoopback {
    public static void main(String[] arguments) throws Exception {
        if (System.getenv("LOCAL_AWS_TETHERED") != null) {
            Thread tether = new Thread(DynamoLoopback::endWithParent);
            tether.setDaemon(true);
            tether.start();
        }
        DynamoDBProxyServer proxy = ServerRunner.createServerFromCommandLineArgs(arguments);
        var field = DynamoDBProxyServer.class.getDeclaredField("server");
        field.setAccessible(true);
        for (var connector : ((Server) field.get(proxy)).getConnectors()) {
            ((ServerConnector) connector).setHost("127.0.0.1");
        }
        proxy.start();
        proxy.join();
    }

    private static void endWithParent() {
        try {
            System.in.read();
        } catch (java.io.IOException gone) {
            // the end of it all the same
        }
        Runtime.getRuntime().halt(0);
    }
}
