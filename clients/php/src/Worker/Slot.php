<?php

declare(strict_types=1);

namespace Tickr\Worker;

/**
 * A process that executes one handler at a time.
 *
 * @internal
 */
final class Slot
{
    public ?Held $held = null;
    /** True while the process waits for a job. */
    public bool $wants = false;
    /** True once the process has waited for a job. */
    public bool $started = false;
    /** The number of its question for a job, in a process that did not start with the engine. */
    public int $ask = 0;
    /** True after the process has said that it ends. */
    public bool $leaving = false;
    /** Exit code or signal, once the process has ended. */
    public ?string $end = null;

    /**
     * @param int  $pid  the process
     * @param bool $owns true when the engine started it and may kill it
     */
    public function __construct(
        public readonly Frames $frames,
        public readonly int $pid,
        public readonly bool $owns,
    ) {
    }

    public function kill(): void
    {
        if ($this->owns && $this->end === null) {
            posix_kill($this->pid, SIGKILL);
        }
    }

    /** Look whether the process has ended, without waiting. */
    public function reap(): bool
    {
        if (!$this->owns && posix_getppid() !== $this->pid) {
            $this->end = 'unknown';
        }
        if ($this->end === null && $this->owns) {
            $status = 0;
            $done = pcntl_waitpid($this->pid, $status, WNOHANG);
            if ($done === $this->pid) {
                $this->end = pcntl_wifsignaled($status)
                    ? 'signal ' . pcntl_wtermsig($status)
                    : 'exit code ' . pcntl_wexitstatus($status);
            } elseif ($done === -1) {
                $this->end = 'an unknown end';
            }
        }
        return $this->end !== null;
    }
}
