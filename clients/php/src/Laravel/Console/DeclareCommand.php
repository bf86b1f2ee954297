<?php

declare(strict_types=1);

namespace Tickr\Laravel\Console;

use Illuminate\Console\Command;
use Tickr\Client;
use Tickr\Json;
use Tickr\Laravel\TickrQueue;

/** Declares the kind of the jobs of Laravel, once. It needs an API key with the scope `admin`. */
class DeclareCommand extends Command
{
    protected $signature = 'tickr:declare
        {connection=tickr : The queue connection}
        {--timeout=3600 : The seconds after which tickr takes an attempt away that Laravel did not end}';

    protected $description = 'Declare the kind of the jobs of Laravel at tickr; TICKR_ADMIN_TOKEN is the API key';

    public function handle(): int
    {
        $connection = (string) $this->argument('connection');
        $queue = $this->laravel->make('queue')->connection($connection);
        if (!$queue instanceof TickrQueue) {
            $this->error("The queue connection \"$connection\" does not have the driver tickr.");
            return 1;
        }
        $config = $this->laravel->make('config')->get("queue.connections.$connection");
        $client = new Client($config['url'] ?? null, getenv('TICKR_ADMIN_TOKEN') ?: ($config['token'] ?? null));
        $body = [
            'description' => 'jobs of Laravel', 'queue' => $queue->getQueue(null), 'max_attempts' => 100,
            'timeout_ms' => (int) $this->option('timeout') * 1000,
        ];
        $client->call('PUT', '/v1/kinds/' . rawurlencode($queue->kind()), Json::encode($body));
        $this->info("The kind \"{$queue->kind()}\" is declared.");
        return 0;
    }
}
