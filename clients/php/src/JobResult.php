<?php

declare(strict_types=1);

namespace Tickr;

/** The state of a job, with its result when it has ended. */
final class JobResult
{
    /**
     * @param string      $state     `waiting`, `executing`, `retrying`, `completed`, `failed` or `cancelled`
     * @param mixed       $result    what the handler returned, in arrays
     * @param string|null $lastError error of the last attempt that did not succeed
     */
    public function __construct(
        public readonly string $id,
        public readonly string $state,
        public readonly mixed $result = null,
        public readonly ?string $lastError = null,
    ) {
    }

    /** True when the job has ended. */
    public function hasEnded(): bool
    {
        return \in_array($this->state, ['completed', 'failed', 'cancelled'], true);
    }

    public function isCompleted(): bool
    {
        return $this->state === 'completed';
    }
}
