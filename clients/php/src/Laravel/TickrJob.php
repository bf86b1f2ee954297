<?php

declare(strict_types=1);

namespace Tickr\Laravel;

use Illuminate\Container\Container;
use Illuminate\Contracts\Queue\Job as JobContract;
use Illuminate\Queue\Jobs\Job;
use Illuminate\Queue\MaxAttemptsExceededException;
use Tickr\Attempt;

/** An attempt of tickr as Laravel sees it. */
class TickrJob extends Job implements JobContract
{
    private ?\Throwable $exception = null;
    private bool $failing = false;
    private bool $settled = false;

    /**
     * @param \Closure(array{verdict: string, error?: string, delay_ms?: ?int}): void $finish takes the verdict
     */
    public function __construct(
        Container $container,
        private readonly Attempt $attempt,
        string $connectionName,
        string $queue,
        private readonly \Closure $finish,
    ) {
        $this->container = $container;
        $this->connectionName = $connectionName;
        $this->queue = $queue;
    }

    public function getJobId(): string
    {
        return $this->attempt->id;
    }

    public function getRawBody(): string
    {
        return $this->attempt->payloadJson->text;
    }

    public function attempts(): int
    {
        return $this->attempt->attempt;
    }

    public function attempt(): Attempt
    {
        return $this->attempt;
    }

    /** The job has succeeded, or fails for good. */
    public function delete(): void
    {
        parent::delete();
        if (!$this->failing) {
            $this->settle(['verdict' => 'succeeded']);
        }
    }

    /**
     * The job runs again after so many seconds, in a further attempt. When tickr gives it none, it fails for good here:
     * tickr would end it without its `failed` method.
     *
     * @param \DateTimeInterface|\DateInterval|int $delay
     */
    public function release($delay = 0): void
    {
        if (!$this->settled && $this->attempt->attempt >= $this->attempt->maxAttempts) {
            $this->fail($this->exception ?? new MaxAttemptsExceededException(
                $this->resolveName() . " was released in its last attempt, number {$this->attempt->attempt}",
            ));
            return;
        }
        $seconds = max(0, $this->secondsUntil($delay));
        parent::release($seconds);
        $this->settle([
            'verdict' => 'failed',
            'error' => $this->exception === null ? "the job was released for $seconds s" : self::text($this->exception),
            'delay_ms' => $seconds * 1000,
        ]);
    }

    /** The job fails for good. Its `failed` method runs before tickr hears of it, so that a crash repeats it. */
    public function fail($e = null): void
    {
        $this->failing = true;
        $error = $e ?? $this->exception;
        try {
            parent::fail($e);
        } finally {
            $text = match (true) {
                $error instanceof \Throwable => self::text($error),
                \is_string($error) => $error,
                default => 'the job failed itself',
            };
            $this->settle(['verdict' => 'rejected', 'error' => $text]);
        }
    }

    /** Keep the exception as the error of the attempt. */
    public function blame(\Throwable $exception): void
    {
        $this->exception = $exception;
    }

    /** True when tickr knows how the attempt ended. */
    public function isSettled(): bool
    {
        return $this->settled;
    }

    /** @param array{verdict: string, error?: string, delay_ms?: ?int} $end */
    private function settle(array $end): void
    {
        if (!$this->settled) {
            $this->settled = true;
            ($this->finish)($end);
        }
    }

    private static function text(\Throwable $error): string
    {
        return $error::class . ': ' . $error->getMessage();
    }
}
