<?php

declare(strict_types=1);

namespace Tickr;

/**
 * Enqueues jobs in a transaction of the caller: a job exists exactly if the transaction is committed.
 *
 * The table `tickr_outbox` stands in the database of the connection, or in another one of the same server.
 */
final class Outbox
{
    private const MAX_PAYLOAD_BYTES = 1 << 20;

    private readonly string $table;

    /**
     * @param string $table name of the table, perhaps with its database: `tickr.tickr_outbox`
     *
     * @throws \InvalidArgumentException when this is no name of a table
     */
    public function __construct(private readonly \PDO $pdo, string $table = 'tickr_outbox')
    {
        if (preg_match('/^[A-Za-z0-9_$]+(\.[A-Za-z0-9_$]+)?$/D', $table) !== 1) {
            throw new \InvalidArgumentException("\"$table\" is not the name of a table");
        }
        $this->table = '`' . str_replace('.', '`.`', $table) . '`';
    }

    /**
     * Write a job into the outbox, on the connection and in the transaction of the caller.
     *
     * @param string|object        $kind    the name of a kind, or a payload object with the attribute {@see Kind}
     * @param array<string, mixed> $options see {@see NewJob}. `delay_ms` counts from the INSERT, by the clock of MySQL
     * @param string|null          $id      UUIDv7 of the job. Give the same one when you repeat a transaction
     *                                      whose COMMIT was not answered
     *
     * @return string the id that the job will have
     *
     * @throws \InvalidArgumentException when an option or the payload is wrong
     * @throws \PDOException             when the INSERT fails
     */
    public function enqueue(
        string|object $kind,
        mixed $payload = [],
        array $options = [],
        ?string $id = null,
    ): string {
        $job = $kind instanceof NewJob ? $kind : new NewJob($kind, $payload, $options);
        $options = $job->options;
        // The server would reject such rows after the COMMIT, and there would be no job.
        if (isset($options['delay_ms'], $options['execute_at'])) {
            throw new \InvalidArgumentException('give execute_at or delay_ms, not both');
        }
        if (isset($options['delay_ms'])) {
            $options['delay_ms'] = max(0, (int) $options['delay_ms']);
        } elseif (isset($options['execute_at'])) {
            $time = new \DateTimeImmutable($options['execute_at'], new \DateTimeZone('UTC'));
            $options['execute_at'] = NewJob::utc($time)->format('Y-m-d H:i:s.v');
        }
        $id ??= Uuid::v7();
        if (preg_match('/^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/Di', $id) !== 1) {
            throw new \InvalidArgumentException('the id of a job is a UUIDv7');
        }
        $payload = Json::payload($job->payload);
        if (\strlen($payload) > self::MAX_PAYLOAD_BYTES) {
            $most = self::MAX_PAYLOAD_BYTES;
            throw new \InvalidArgumentException("a payload has at most $most bytes, this one has " . \strlen($payload));
        }
        $columns = [
            str_replace('-', '', $id),
            $job->kind,
            $payload,
            $options['queue'] ?? null,
            $options['execute_at'] ?? null,
        ];
        unset($options['queue'], $options['execute_at']);
        $columns[] = $options === [] ? null : Json::encode($options);
        // The id goes as hexadecimal text, because bytes may not fit the character set of the connection.
        $sql = "INSERT INTO $this->table (id, kind, payload, queue, execute_at, options)"
            . ' VALUES (UNHEX(?), ?, ?, ?, ?, ?)';
        $statement = $this->pdo->prepare($sql);
        // Without exceptions of PDO, a failure is only a return value, and the caller would commit without the job.
        if ($statement === false || !$statement->execute($columns)) {
            throw self::failure($statement === false ? $this->pdo->errorInfo() : $statement->errorInfo());
        }
        return $id;
    }

    /** @param array{?string, mixed, ?string} $info what PDO says of the failure */
    private static function failure(array $info): \PDOException
    {
        $exception = new \PDOException($info[2] ?? 'the INSERT into the outbox failed');
        $exception->errorInfo = $info;
        return $exception;
    }
}
