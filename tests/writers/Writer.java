import java.io.File;
import java.nio.ByteBuffer;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.ThreadLocalRandom;

/**
 * Writes orders with rows of the outbox, until the file `stop` is in its folder. A transaction whose COMMIT is not
 * answered is repeated with the same ids, as docs/TRANSACTIONS.md says. Some transactions are rolled back.
 */
class Writer {
    static final int DUPLICATE_KEY = 1062;

    /** The package com.github.f4b6a3:uuid-creator, as far as the document uses it. */
    static class UuidCreator {
        static UUID next;

        static UUID getTimeOrderedEpoch() {
            return next;
        }
    }

    static class UuidUtil {
        static byte[] getBytes(UUID id) {
            var bytes = ByteBuffer.allocate(16);
            return bytes.putLong(id.getMostSignificantBits()).putLong(id.getLeastSignificantBits()).array();
        }
    }

    /** The connection as the INSERT of the document gets it. The transaction goes on with the next row. */
    record SharedTransaction(Connection real) {
        PreparedStatement prepareStatement(String sql) throws SQLException {
            return real.prepareStatement(sql);
        }

        void commit() {}
    }

    static UUID newId() {
        var random = ThreadLocalRandom.current();
        var most = System.currentTimeMillis() << 16 | 0x7000 | random.nextInt(0x1000);
        return new UUID(most, 0x8000000000000000L | random.nextLong() >>> 2);
    }

    static void insert(SharedTransaction connection, String mail) throws SQLException {
        // THE INSERT OF docs/TRANSACTIONS.md
    }

    static void note(Connection connection, String sql, UUID id) throws SQLException {
        try (var statement = connection.prepareStatement(sql)) {
            statement.setBytes(1, UuidUtil.getBytes(id));
            statement.executeUpdate();
        }
    }

    static void write(Connection connection, List<UUID> ids, boolean keeps) throws SQLException {
        for (var id : ids) {
            note(connection, "INSERT IGNORE INTO sold (id) VALUES (?)", id);
            UuidCreator.next = id;
            insert(new SharedTransaction(connection), "{\"pad\": \"java\"}");
        }
        if (keeps) {
            connection.commit();
            return;
        }
        connection.rollback();
        for (var id : ids) {
            note(connection, "INSERT INTO undone (id) VALUES (?)", id);
        }
        connection.commit();
    }

    public static void main(String[] args) throws Exception {
        var url = "jdbc:mariadb://" + args[0] + ":" + args[1] + "/" + args[4];
        var random = ThreadLocalRandom.current();
        Connection connection = null;
        while (!new File("stop").exists()) {
            var ids = new ArrayList<UUID>();
            for (var rows = random.nextInt(1, Integer.parseInt(args[5]) + 1); rows > 0; rows--) {
                ids.add(newId());
            }
            var keeps = random.nextInt(8) > 0;
            while (true) {
                try {
                    if (connection == null) {
                        connection = DriverManager.getConnection(url, args[2], args[3]);
                        connection.setAutoCommit(false);
                    }
                    write(connection, ids, keeps);
                    break;
                } catch (SQLException error) {
                    if (error.getErrorCode() == DUPLICATE_KEY) {
                        // The COMMIT before was done, and the rows still wait.
                        connection.rollback();
                        break;
                    }
                    System.out.println(error.getMessage());
                    connection = null;
                    if (!keeps) {
                        break;
                    }
                    Thread.sleep(50);
                }
            }
        }
    }
}
