<?php

declare(strict_types=1);

namespace Tickr\Laravel;

use Illuminate\Contracts\Queue\Job;
use Illuminate\Contracts\Queue\Queue as QueueContract;
use Illuminate\Queue\Queue;
use Tickr\Client;
use Tickr\ConnectionFailed;
use Tickr\NewJob;
use Tickr\Outbox;
use Tickr\Problem;
use Tickr\RawJson;
use Tickr\Worker\Agent;
use Tickr\Worker\Child;
use Tickr\Worker\Settings;

/** A queue of Laravel whose jobs are jobs of tickr, all of one kind. */
class TickrQueue extends Queue implements QueueContract
{
    /** Most attempts that tickr gives a job. */
    private const MOST_ATTEMPTS = 100;
    /** Seconds by which the limit of tickr is longer than that of Laravel, which acts first. */
    private const TIMEOUT_LEEWAY = 5;
    private const BULK_BYTES = 200_000;

    /** @var array<string, Agent> one for each queue from which this process pops */
    private array $agents = [];
    private int $agentsOf = 0;

    /**
     * @param (\Closure(): \PDO)|null $outbox     the connection whose transactions enqueue; null to enqueue over HTTP
     * @param Client|null             $workClient the client of the workers; null for the one that enqueues
     */
    public function __construct(
        private readonly Client $client,
        private readonly string $kind,
        private readonly string $default,
        private readonly float $blockFor,
        private readonly int $leaseSeconds,
        bool $afterCommit,
        private readonly ?\Closure $outbox = null,
        private readonly string $outboxTable = 'tickr_outbox',
        private readonly ?Client $workClient = null,
    ) {
        $this->dispatchAfterCommit = $afterCommit;
    }

    /** The number of unfinished jobs: those that wait, also for their time, and those that run. */
    public function size($queue = null): int
    {
        try {
            $path = '/v1/queues/' . rawurlencode($this->getQueue($queue));
            $states = $this->client->call('GET', $path)->json()['states'];
        } catch (Problem $problem) {
            return $problem->code === 'not_found' ? 0 : throw $problem;
        }
        return array_sum(array_intersect_key($states, ['waiting' => 0, 'retrying' => 0, 'executing' => 0]));
    }

    public function push($job, $data = '', $queue = null)
    {
        return $this->enqueueUsing(
            $job,
            $this->createPayload($job, $this->getQueue($queue), $data),
            $queue,
            null,
            fn ($payload, $queue) => $this->pushRaw($payload, $queue),
        );
    }

    public function pushRaw($payload, $queue = null, array $options = [])
    {
        return $this->enqueue($this->newJob($payload, $queue, null));
    }

    public function later($delay, $job, $data = '', $queue = null)
    {
        return $this->enqueueUsing(
            $job,
            $this->createPayload($job, $this->getQueue($queue), $data),
            $queue,
            $delay,
            fn ($payload, $queue, $delay) => $this->enqueue($this->newJob($payload, $queue, $delay)),
        );
    }

    /** Push many jobs, in as few requests as possible. A request enqueues all of its jobs or none. */
    public function bulk($jobs, $data = '', $queue = null): void
    {
        $jobs = (array) $jobs;
        $single = static fn ($job): bool => false;
        if ($this->outbox === null) {
            $single = fn ($job): bool => $this->shouldDispatchAfterCommit($job)
                && $this->container->bound('db.transactions');
        }
        $page = [];
        $bytes = 0;
        foreach ($jobs as $job) {
            $delay = \is_object($job) ? ($job->delay ?? null) : null;
            if ($this->outbox !== null || $single($job)) {
                $delay === null ? $this->push($job, $data, $queue) : $this->later($delay, $job, $data, $queue);
                continue;
            }
            $payload = $this->createPayload($job, $this->getQueue($queue), $data);
            $bytes += \strlen($payload) + 500;
            if ($page !== [] && (\count($page) >= 1000 || $bytes > self::BULK_BYTES)) {
                $this->client->enqueueMany($page);
                $page = [];
                $bytes = \strlen($payload) + 500;
            }
            $page[] = $this->newJob($payload, $queue, $delay);
        }
        $this->client->enqueueMany($page);
    }

    /**
     * Take the next job for a worker of Laravel. A process beside this one holds its lease and sends its beats.
     *
     * @throws ConnectionFailed when that process has ended; the next call starts another one
     */
    public function pop($queue = null): ?Job
    {
        $queue = $this->getQueue($queue);
        if ($this->agentsOf !== getmypid()) {
            $this->agents = [];
            $this->agentsOf = (int) getmypid();
        }
        $agent = $this->agents[$queue] ?? null;
        if ($agent === null || !$agent->isAlive()) {
            $waitMs = (int) ($this->blockFor * 1000);
            $agent = $this->agents[$queue] = Agent::start(
                $this->workClient(),
                new Settings('laravel', [$queue], 1, $this->leaseSeconds * 1000, waitMs: $waitMs),
                [$this->kind],
                // An agent says only what goes wrong, such as a server that it cannot reach. `pop` returns no job then.
                static fn (string $line) => file_put_contents('php://stderr', "tickr: $line\n"),
            );
        }
        $job = $agent->next($this->blockFor + 1.0);
        if ($job === null) {
            return null;
        }
        try {
            $attempt = Child::attempt($job);
        } catch (\Throwable $error) {
            $agent->finish(['verdict' => 'failed', 'error' => 'the job cannot be read: ' . $error->getMessage()]);
            return null;
        }
        return new TickrJob($this->container, $attempt, $this->connectionName, $attempt->queue, $agent->finish(...));
    }

    public function getQueue($queue): string
    {
        return $queue ?: $this->default;
    }

    public function client(): Client
    {
        return $this->client;
    }

    /** The client of the workers. */
    public function workClient(): Client
    {
        return $this->workClient ?? $this->client;
    }

    public function kind(): string
    {
        return $this->kind;
    }

    private function enqueue(NewJob $job): string
    {
        if ($this->outbox !== null) {
            return (new Outbox(($this->outbox)(), $this->outboxTable))->enqueue($job);
        }
        return $this->client->enqueue($job)->id;
    }

    private function newJob(string $payload, ?string $queue, mixed $delay): NewJob
    {
        $read = json_decode($payload, true);
        $options = ['queue' => $this->getQueue($queue), 'max_attempts' => self::MOST_ATTEMPTS];
        $tries = $read['maxTries'] ?? null;
        if (\is_int($tries) && $tries > 0 && !isset($read['retryUntil'])) {
            // One more than Laravel counts: when the last attempt is lost with its process, Laravel itself says in the
            // next one that the job has failed, and calls its `failed` method.
            $options['max_attempts'] = min($tries + 1, self::MOST_ATTEMPTS);
        }
        if (\is_int($read['timeout'] ?? null) && $read['timeout'] > 0) {
            $options['timeout_ms'] = min(($read['timeout'] + self::TIMEOUT_LEEWAY) * 1000, 86_400_000);
        }
        $name = preg_replace('/[^A-Za-z0-9_.:\/@=+-]/', '.', (string) ($read['displayName'] ?? ''));
        if ($name !== '') {
            $options['tags'] = ['class:' . substr($name, -58)];
        }
        if ($delay !== null) {
            $options['delay_ms'] = max(0, $this->secondsUntil($delay)) * 1000;
        }
        return new NewJob($this->kind, new RawJson($payload), $options);
    }
}
