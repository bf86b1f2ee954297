<?php

declare(strict_types=1);

namespace Tickr\Tests\Support;

use Tickr\Client;
use Tickr\Worker;
use Tickr\Worker\Child;
use Tickr\Worker\Settings;

/** A worker in a process of its own. */
final class WorkerProcess
{
    public readonly int $pid;
    private readonly string $log;
    private readonly int $owner;
    private ?int $code = null;

    /** @param \Closure(Worker): void $prepare adds the handlers */
    public function __construct(string $url, Settings $settings, \Closure $prepare, ?string $token = null)
    {
        $this->owner = (int) getmypid();
        $this->log = (string) tempnam(sys_get_temp_dir(), 'tickr');
        $pid = pcntl_fork();
        if ($pid === 0) {
            try {
                $worker = new Worker(new Client($url, $token), $settings);
                $log = $this->log;
                $worker->logTo(static fn (string $line) => file_put_contents($log, "$line\n", FILE_APPEND));
                $prepare($worker);
                $code = $worker->run();
            } catch (\Throwable $error) {
                file_put_contents($this->log, $error->getMessage() . "\n", FILE_APPEND);
                $code = 70;
            }
            file_put_contents($this->log . '.code', (string) $code);
            Child::vanish();
        }
        $this->pid = $pid;
    }

    public function __destruct()
    {
        if ($this->owner !== getmypid()) {
            // A handler that calls exit() destroys the objects of its parents, too.
            return;
        }
        if ($this->code === null) {
            posix_kill($this->pid, SIGKILL);
            pcntl_waitpid($this->pid, $status);
        }
        @unlink($this->log);
        @unlink($this->log . '.code');
    }

    public function signal(int $signal): void
    {
        posix_kill($this->pid, $signal);
    }

    /** Wait for the end of the process. Returns what `run` returned, or -1 when the process was killed. */
    public function join(float $seconds = 15.0): int
    {
        if ($this->code === null) {
            Wait::until(fn () => pcntl_waitpid($this->pid, $status, WNOHANG) === $this->pid, 'the worker', $seconds);
            $file = $this->log . '.code';
            $this->code = is_file($file) ? (int) file_get_contents($file) : -1;
        }
        return $this->code;
    }

    public function log(): string
    {
        return (string) file_get_contents($this->log);
    }
}
