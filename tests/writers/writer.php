<?php
// Writes orders with rows of the outbox, until the file `stop` is in its folder. A transaction whose COMMIT is not
// answered is repeated with the same ids, as docs/TRANSACTIONS.md says. Some transactions are rolled back.

namespace Symfony\Component\Uid {
    // The package symfony/uid, as far as the document uses it.
    final class Uuid
    {
        public static string $next;

        public static function v7(): self
        {
            return new self();
        }

        public function toBinary(): string
        {
            return self::$next;
        }
    }
}

namespace {
    use Symfony\Component\Uid\Uuid;

    const DUPLICATE_KEY = 1062;
    [, $host, $port, $user, $password, $database, $mostRows] = $argv;

    // The connection as the INSERT of the document gets it. The transaction goes on with the next row.
    final class SharedTransaction
    {
        public function __construct(private PDO $real) {}

        public function beginTransaction(): void {}

        public function prepare(string $sql): PDOStatement
        {
            return $this->real->prepare($sql);
        }

        public function commit(): void {}
    }

    function newId(): string
    {
        $id = substr(pack('J', (int) (microtime(true) * 1000)), 2) . random_bytes(10);
        $id[6] = chr(0x70 | (ord($id[6]) & 0x0f));
        $id[8] = chr(0x80 | (ord($id[8]) & 0x3f));
        return $id;
    }

    function insert(SharedTransaction $pdo, array $mail): void
    {
        // THE INSERT OF docs/TRANSACTIONS.md
    }

    function write(PDO $pdo, array $ids, bool $keeps): void
    {
        $pdo->beginTransaction();
        foreach ($ids as $id) {
            $pdo->prepare('INSERT IGNORE INTO sold (id) VALUES (?)')->execute([$id]);
            Uuid::$next = $id;
            insert(new SharedTransaction($pdo), ['pad' => 'php']);
        }
        if ($keeps) {
            $pdo->commit();
            return;
        }
        $pdo->rollBack();
        foreach ($ids as $id) {
            $pdo->prepare('INSERT INTO undone (id) VALUES (?)')->execute([$id]);
        }
    }

    $pdo = null;
    while (!file_exists('stop')) {
        clearstatcache();
        $ids = array_map(fn() => newId(), range(1, random_int(1, (int) $mostRows)));
        $keeps = random_int(0, 7) > 0;
        while (true) {
            try {
                $pdo ??= new PDO("mysql:host=$host;port=$port;dbname=$database;charset=utf8mb4", $user, $password);
                write($pdo, $ids, $keeps);
                break;
            } catch (PDOException $error) {
                if (($error->errorInfo[1] ?? 0) === DUPLICATE_KEY) {
                    // The COMMIT before was done, and the rows still wait.
                    $pdo->rollBack();
                    break;
                }
                echo $error->getMessage(), "\n";
                $pdo = null;
                if (!$keeps) {
                    break;
                }
                usleep(50_000);
            }
        }
    }
}
