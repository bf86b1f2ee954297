<?php

declare(strict_types=1);

namespace Tickr;

use Tickr\Http\Addresses;
use Tickr\Http\Channel;
use Tickr\Http\Request;
use Tickr\Http\Response;
use Tickr\Http\Turns;

/**
 * Calls the API of tickr.
 *
 * A call is repeated when the connection fails or the server is busy, with growing pauses or after the `Retry-After` of
 * the answer, and goes to the next address when there are several. Every enqueue carries an idempotency key, so a
 * repeated one makes one job.
 */
final class Client implements Enqueuer
{
    /** Seconds of the longest pause between two tries that no server asks for. */
    private const LONGEST_PAUSE = 5.0;

    private readonly Addresses $addresses;
    private readonly Channel $channel;
    /** @var \Closure(): ?string */
    private readonly \Closure $token;

    /**
     * @param string|null $url         one address, or several with commas between them. Default: `TICKR_URL`, or
     *                                 `http://127.0.0.1:7070`
     * @param string|null $token       API key. Default: `TICKR_TOKEN`
     * @param float       $retryFor    seconds after which a call gives up repeating
     * @param float       $callTimeout seconds that one answer may take; then the next address is tried
     *
     * @throws \InvalidArgumentException when an address is wrong
     */
    public function __construct(
        ?string $url = null,
        #[\SensitiveParameter] ?string $token = null,
        private readonly float $retryFor = 30.0,
        private readonly float $callTimeout = 10.0,
    ) {
        $token ??= getenv('TICKR_TOKEN') ?: null;
        if ($token !== null && preg_match('/^[\x21-\x7e]*$/D', $token) !== 1) {
            throw new \InvalidArgumentException('the token has characters that no API key has');
        }
        $this->addresses = new Addresses($url ?? (getenv('TICKR_URL') ?: 'http://127.0.0.1:7070'));
        $this->token = static fn (): ?string => $token;
        $this->channel = $this->channel();
    }

    public function enqueue(
        string|object $kind,
        mixed $payload = [],
        array $options = [],
        ?string $idempotencyKey = null,
    ): Enqueued {
        $job = $kind instanceof NewJob ? $kind : new NewJob($kind, $payload, $options);
        $response = $this->post('/v1/jobs', $job->toJson(), $idempotencyKey ?? Uuid::v4());
        $answer = $response->json();
        $existing = $response->status === 200;
        return new Enqueued(self::idOf($answer), $existing, array_values($answer['warnings'] ?? []));
    }

    public function enqueueMany(iterable $jobs, ?string $idempotencyKey = null): array
    {
        $texts = [];
        foreach ($jobs as $job) {
            $texts[] = ($job instanceof NewJob ? $job : new NewJob($job))->toJson();
        }
        if ($texts === []) {
            return [];
        }
        $body = '{"jobs":[' . implode(',', $texts) . ']}';
        $answer = $this->post('/v1/jobs/batch', $body, $idempotencyKey ?? Uuid::v4())->json();
        $enqueued = static fn (mixed $one) => new Enqueued(self::idOf($one), (bool) ($one['existing'] ?? false));
        $jobs = \is_array($answer['jobs'] ?? null) ? array_values($answer['jobs']) : [];
        if (\count($jobs) !== \count($texts)) {
            throw new ConnectionFailed('the answer to an enqueue does not name the jobs, so it is none of tickr');
        }
        return array_map($enqueued, $jobs);
    }

    /**
     * Create a batch, perhaps with its first jobs and callbacks.
     *
     * @param array{name?: string, jobs?: list<NewJob|object>, on_success?: NewJob|object, on_complete?: NewJob|object,
     *     on_failure?: NewJob|object, parent?: string, close?: bool} $batch
     *
     * @return array<string, mixed> the batch with its `id` and the ids of its `jobs`
     *
     * @throws Problem
     * @throws ConnectionFailed
     */
    public function createBatch(array $batch, ?string $idempotencyKey = null): array
    {
        $text = static fn (object $job): string => ($job instanceof NewJob ? $job : new NewJob($job))->toJson();
        $members = [];
        foreach ($batch as $name => $value) {
            $members[$name] = match (true) {
                $name === 'jobs' => '[' . implode(',', array_map($text, [...$value])) . ']',
                \is_object($value) => $text($value),
                default => Json::encode($value),
            };
        }
        return $this->post('/v1/batches', Json::object($members), $idempotencyKey ?? Uuid::v4())->json();
    }

    /**
     * Close a batch: it ends with its last job.
     *
     * @return array<string, mixed> the batch
     *
     * @throws Problem
     * @throws ConnectionFailed
     */
    public function closeBatch(string $id): array
    {
        return $this->post('/v1/batches/' . rawurlencode($id) . '/close', '{}', Uuid::v4())->json();
    }

    /**
     * @return array<string, mixed>|null the job with its attempts, as `GET /v1/jobs/{id}` shows it; null when there is
     *                                   none
     *
     * @throws Problem
     * @throws ConnectionFailed
     */
    public function job(string $id): ?array
    {
        try {
            return $this->call('GET', '/v1/jobs/' . rawurlencode($id))->json();
        } catch (Problem $problem) {
            return $problem->code === 'not_found' ? null : throw $problem;
        }
    }

    /**
     * Cancel a job.
     *
     * @return bool true when it never starts again; false when its handler was asked to stop
     *
     * @throws Problem          with the code `wrong_state` when the job has ended, and `not_found` when there is none
     * @throws ConnectionFailed
     */
    public function cancel(string $id): bool
    {
        // A repeated call with the same key has the same answer. Without one, a cancel that worked would be refused.
        return $this->post('/v1/jobs/' . rawurlencode($id) . '/cancel', '{}', Uuid::v4())->status === 200;
    }

    /**
     * Wait for the end of a job.
     *
     * @param float $timeout longest wait in seconds
     *
     * @return JobResult the state of the job, which has not ended when the time was too short
     *
     * @throws Problem          with the code `not_found` when there is no such job
     * @throws ConnectionFailed
     */
    public function wait(string $id, float $timeout = 30.0): JobResult
    {
        $deadline = Channel::now() + $timeout;
        do {
            $seconds = (int) max(0, min(30, ceil($deadline - Channel::now())));
            $path = '/v1/jobs/' . rawurlencode($id) . "/result?wait={$seconds}s";
            $answer = $this->call('GET', $path, timeout: $seconds + $this->callTimeout)->json();
            $result = new JobResult(
                (string) $answer['id'],
                (string) $answer['state'],
                $answer['result'] ?? null,
                $answer['last_error'] ?? null,
            );
        } while (!$result->hasEnded() && Channel::now() < $deadline);
        return $result;
    }

    /**
     * Let a server move the rows of the outbox at once. Call it after the COMMIT; nothing is lost without it.
     *
     * It is tried once, for at most a second, so that it holds up no request while tickr is down.
     *
     * @throws Problem
     * @throws ConnectionFailed
     */
    public function nudge(): void
    {
        $response = $this->channel->call(new Request('POST', '/v1/outbox/nudge', null, [], 1.0));
        if (!$response->isSuccess()) {
            if ($response->isPassing()) {
                $this->addresses->failed($this->addresses->current());
            }
            throw Problem::of($response);
        }
    }

    /**
     * Call any path of the API.
     *
     * @param string      $path           such as `/v1/queues/mails`
     * @param string|null $json           the body
     * @param string|null $idempotencyKey for calls that would do something twice when they are repeated
     * @param float|null  $timeout        seconds that one answer may take
     *
     * @return Response an answer with a status below 300
     *
     * @throws Problem          when the server refuses the call
     * @throws ConnectionFailed when no server answers in time
     */
    public function call(
        string $method,
        string $path,
        ?string $json = null,
        ?string $idempotencyKey = null,
        ?float $timeout = null,
    ): Response {
        $headers = $idempotencyKey === null ? [] : ['Idempotency-Key' => self::visible($idempotencyKey)];
        $request = new Request($method, $path, $json, $headers, $timeout ?? $this->callTimeout);
        // A try that waits for the end of a job must leave time for another address.
        $deadline = Channel::now() + $this->retryFor + max(0.0, $request->timeout - $this->callTimeout);
        $turns = new Turns($this->addresses, self::LONGEST_PAUSE);
        while (true) {
            $place = $turns->place();
            $after = 0.0;
            try {
                $response = $this->channel->call($request, $place);
                if ($response->isSuccess()) {
                    return $response;
                }
                $failure = Problem::of($response);
                if (!$response->isPassing() && $failure->code !== 'idempotency_in_progress') {
                    throw $failure;
                }
                $this->addresses->failed($place);
                $after = $response->retryAfter() ?? 0.0;
            } catch (ConnectionFailed $failure) {
            }
            $wait = $turns->next($place, $after);
            if (Channel::now() + $wait >= $deadline) {
                throw $failure;
            }
            self::sleep($wait);
        }
    }

    /**
     * The addresses and a new connection, for a worker with the same settings.
     *
     * @internal
     */
    public function addresses(): Addresses
    {
        return $this->addresses;
    }

    /** @internal */
    public function channel(): Channel
    {
        return new Channel($this->addresses, $this->token);
    }

    /**
     * The header with which a worker shows that its successes may enqueue jobs.
     *
     * @internal
     *
     * @return array<string, \Closure(): string>
     */
    public function right(): array
    {
        $token = $this->token;
        $has = \strlen($token() ?? '') > 0;
        return $has ? ['Tickr-Enqueue-Authorization' => static fn (): string => 'Bearer ' . $token()] : [];
    }

    /** @return array<string, mixed> */
    public function __debugInfo(): array
    {
        return ['addresses' => $this->addresses];
    }

    public function __serialize(): array
    {
        throw new \LogicException('a client cannot be serialized, because it holds a token');
    }

    private function post(string $path, ?string $json, ?string $key): Response
    {
        return $this->call('POST', $path, $json, $key);
    }

    /** The id of a job in an answer. A success without one comes from a proxy, and there may be no job. */
    private static function idOf(mixed $answer): string
    {
        $id = \is_array($answer) ? $answer['id'] ?? null : null;
        if (!\is_string($id) || $id === '') {
            throw new ConnectionFailed('the answer to an enqueue has no id of a job, so it is none of tickr');
        }
        return $id;
    }

    private static function visible(string $key): string
    {
        if (preg_match('/^[\x21-\x7e]{1,255}$/D', $key) !== 1) {
            throw new \InvalidArgumentException('an idempotency key has 1 to 255 visible ASCII characters');
        }
        return $key;
    }

    /** Sleep for the whole time, although signals come. */
    private static function sleep(float $seconds): void
    {
        $end = Channel::now() + $seconds;
        while (($left = $end - Channel::now()) > 0) {
            usleep((int) ($left * 1e6));
        }
    }
}
