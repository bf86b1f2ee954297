<?php

declare(strict_types=1);

namespace Tickr\Laravel;

use Illuminate\Queue\Worker;
use Illuminate\Queue\WorkerOptions;

/**
 * The worker of Laravel without its loop: tickr says which job is next.
 *
 * @internal
 */
class LaravelWorker extends Worker
{
    private ?\Closure $beforeKill = null;

    /**
     * Execute one job with the time limit, the events and the failures of Laravel.
     *
     * @param \Closure(): void $beforeKill is called when the time of the job is over, before this process kills itself
     */
    public function runOne(TickrJob $job, string $connection, WorkerOptions $options, \Closure $beforeKill): void
    {
        $this->beforeKill = $beforeKill;
        if (isset($this->resetScope)) {
            ($this->resetScope)();
        }
        pcntl_async_signals(true);
        $this->registerTimeoutHandler($job, $options);
        try {
            $this->runJob($job, $connection, $options);
        } finally {
            $this->resetTimeoutHandler();
        }
    }

    public function kill($status = 0, ...$more)
    {
        if ($this->beforeKill !== null) {
            ($this->beforeKill)();
        }
        return parent::kill($status, ...$more);
    }
}
