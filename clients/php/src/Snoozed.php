<?php

declare(strict_types=1);

namespace Tickr;

/**
 * The job runs again later, and no attempt is used. After a hundred attempts of a job that used none, each further
 * snooze or release counts as failed and uses an attempt.
 */
final class Snoozed extends Ending
{
    /** @param int $delayMs milliseconds until the job runs again */
    public function __construct(private readonly int $delayMs, string $message)
    {
        parent::__construct($message);
    }

    public function verdict(): string
    {
        return 'snoozed';
    }

    public function delayMs(): int
    {
        return $this->delayMs;
    }
}
