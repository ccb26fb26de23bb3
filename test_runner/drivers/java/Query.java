// As ../README.md says, by the JDBC driver of Postgres.
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.Properties;

public class Query {
    static Connection connect(String user, String options) throws SQLException {
        Properties properties = new Properties();
        properties.setProperty("user", user);
        properties.setProperty("password", System.getenv("GATEWAY_PASSWORD"));
        // From the first execution on, a statement is prepared in the server.
        properties.setProperty("prepareThreshold", "1");
        if (options != null) {
            properties.setProperty("options", options);
        }
        String port = System.getenv("GATEWAY_PORT");
        return DriverManager.getConnection("jdbc:postgresql://127.0.0.1:" + port + "/postgres", properties);
    }

    static String text(Connection connection, String sql) throws SQLException {
        try (Statement statement = connection.createStatement(); ResultSet found = statement.executeQuery(sql)) {
            found.next();
            return found.getString(1);
        }
    }

    static int rows(Connection connection) throws SQLException {
        int count = 0;
        try (PreparedStatement few = connection.prepareStatement("SELECT i FROM kept WHERE i <= ?")) {
            for (int most : new int[] {10, 20}) {
                few.setInt(1, most);
                try (ResultSet found = few.executeQuery()) {
                    while (found.next()) {
                        count++;
                    }
                }
            }
        }
        return count;
    }

    static String cancelled(Connection connection) throws Exception {
        try (Statement statement = connection.createStatement()) {
            Thread timer = new Thread(() -> {
                try {
                    Thread.sleep(1000);
                    statement.cancel();
                } catch (Exception error) {
                    error.printStackTrace();
                }
            });
            timer.start();
            try {
                statement.execute("SELECT pg_sleep(60)");
                return "not";
            } catch (SQLException error) {
                return error.getSQLState();
            } finally {
                timer.join();
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        String branch = System.getenv("GATEWAY_BRANCH");
        try (Connection connection = connect("postgres", "-cbranch=" + branch);
                Connection other = connect("postgres@" + branch, null)) {
            int rows = rows(connection);
            int length = text(connection, "SELECT repeat('x', 3000000)").length();
            String code = cancelled(connection);
            String after = text(connection, "SELECT 1");
            String user = text(other, "SELECT current_user");
            System.out.printf("rows %d, long %d, cancelled %s, after %s, user %s%n", rows, length, code, after, user);
        }
    }
}
