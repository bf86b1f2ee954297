<?php

declare(strict_types=1);

namespace Tickr;

/** What a handler knows of its attempt, and what it reports. */
abstract class Context
{
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
