<?php

declare(strict_types=1);

namespace Tickr;

/** What a handler knows of its attempt, and what it reports. */
abstract class Context
{
    private const MAX_FOLLOW_UPS = 1_000;

    /** @var list<string> the jobs that follow a success, as JSON texts */
    private array $followUps = [];

    public function __construct(public readonly Attempt $attempt)
    {
    }

    /**
     * Report progress. The next beat carries it.
     *
     * @param float       $percent 0 to 100
     * @param string|null $note    at most 120 characters are kept
     */
    public function progress(float $percent, ?string $note = null): void
    {
        $percent = is_finite($percent) ? max(0.0, min(100.0, $percent)) : 0.0;
        if ($note !== null) {
            $note = Text::first((string) preg_replace('/\p{Cc}+/u', ' ', Text::clean($note)), 120);
        }
        $this->report($percent, $note);
    }

    /**
     * Save a value with which the next attempt begins if this one does not succeed.
     *
     * @throws \InvalidArgumentException when it is no JSON, or more than 65,536 bytes of it
     */
    public function checkpoint(mixed $value): void
    {
        $json = Json::encode($value);
        if (\strlen($json) > 65_536) {
            throw new \InvalidArgumentException('a checkpoint has at most 65,536 bytes of JSON, not ' . \strlen($json));
        }
        $this->save($json);
    }

    /** The value that an earlier attempt saved, in arrays, or null. */
    public function lastCheckpoint(): mixed
    {
        return $this->attempt->checkpoint?->decode();
    }

    /**
     * Enqueue a job with the success of this attempt: the server stores both, or neither. The job continues the trace.
     *
     * An attempt that does not succeed enqueues none of its jobs, so its next attempt repeats none. The worker needs an
     * API key with the scope `enqueue` for them: see {@see Worker::enqueueWith}.
     *
     * @param string|object $kind    name of a kind, a payload object with the attribute {@see Kind}, or a {@see NewJob}
     * @param mixed         $payload the payload, when `$kind` is a name. An empty array is sent as `{}`
     * @param array{
     *     queue?: string, execute_at?: string|\DateTimeInterface, delay_ms?: int, expires_in_ms?: int,
     *     max_attempts?: int, timeout_ms?: int, priority?: int, order_key?: string, on_failure?: string,
     *     limit_key?: string, retry?: array<string, mixed>, tags?: list<string>, in_batch?: bool
     * } $options times count from the success; `in_batch` adds the job to the batch of this one
     *
     * @throws \InvalidArgumentException when an option is no such one, or the payload cannot be written as JSON
     * @throws \LengthException          after 1,000 jobs
     */
    public function then(string|object $kind, mixed $payload = [], array $options = []): void
    {
        $job = NewJob::followUp($kind, $payload, $options);
        if (\count($this->followUps) >= self::MAX_FOLLOW_UPS) {
            throw new \LengthException('at most 1,000 jobs follow one: let one of them enqueue the rest');
        }
        $this->followUps[] = $job;
    }

    /**
     * The jobs that follow a success, as JSON texts.
     *
     * @internal
     *
     * @return list<string>
     */
    public function followUps(): array
    {
        return $this->followUps;
    }

    /** Write a line into the log of the attempt. Its newest 16 KiB are kept. */
    abstract public function log(string $line): void;

    /**
     * Look whether the handler must stop. Call it between the steps of a long handler.
     *
     * @throws Cancelled
     */
    public function check(): void
    {
        $reason = $this->cancelled();
        if ($reason !== null) {
            throw new Cancelled($reason);
        }
    }

    /** True when the handler must stop. */
    public function isCancelled(): bool
    {
        return $this->cancelled() !== null;
    }

    /**
     * Sleep for so many milliseconds, or until the handler must stop.
     *
     * @throws Cancelled
     */
    abstract public function sleep(int $ms): void;

    /** Milliseconds until the time of the attempt is over. */
    abstract public function remainingMs(): int;

    /** The reason why the handler must stop, one of the constants of {@see Cancelled}, or null. */
    abstract protected function cancelled(): ?string;

    abstract protected function report(float $percent, ?string $note): void;

    abstract protected function save(string $json): void;
}
