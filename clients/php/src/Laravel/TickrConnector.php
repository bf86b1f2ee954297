<?php

declare(strict_types=1);

namespace Tickr\Laravel;

use Illuminate\Contracts\Container\Container;
use Illuminate\Contracts\Queue\Queue;
use Illuminate\Queue\Connectors\ConnectorInterface;
use Tickr\Client;

/** Makes the queue of a connection with the driver `tickr` in config/queue.php. */
class TickrConnector implements ConnectorInterface
{
    public function __construct(private readonly Container $container)
    {
    }

    public function connect(array $config): Queue
    {
        $outbox = null;
        if (isset($config['outbox'])) {
            // The connection is looked up for each job, because Laravel may open it anew.
            $outbox = fn (): \PDO => $this->container->make('db')->connection($config['outbox'])->getPdo();
        }
        $token = $config['token'] ?? null;
        return new TickrQueue(
            new Client($config['url'] ?? null, $token),
            (string) ($config['kind'] ?? 'laravel'),
            (string) ($config['queue'] ?? 'laravel'),
            (float) ($config['block_for'] ?? 2),
            (int) ($config['lease'] ?? 60),
            (bool) ($config['after_commit'] ?? false),
            $outbox,
            (string) ($config['outbox_table'] ?? 'tickr_outbox'),
            // An API key has one scope: that of a worker enqueues nothing.
            new Client($config['url'] ?? null, ($config['work_token'] ?? null) ?: $token),
        );
    }
}
