<?php

declare(strict_types=1);

namespace Tickr\Worker;

use Tickr\Client;
use Tickr\ConnectionFailed;
use Tickr\Http\Channel;

/**
 * A process beside the program that executes one job at a time in its own process.
 *
 * The agent holds the lease of the program and sends its beats, so a job may block the program. It ends by itself when
 * the program is gone.
 *
 * @internal
 */
final class Agent
{
    private const SETTLE_SECONDS = 10.0;
    private const REAP_SECONDS = 1.0;

    private bool $asked = false;
    /** True from a job to the word of how it ended. */
    private bool $executes = false;
    /** The number of the newest question for a job. Answers to earlier ones were given back. */
    private int $ask = 0;

    private function __construct(private readonly Frames $frames, private readonly int $pid)
    {
    }

    /**
     * @param list<string>           $kinds
     * @param \Closure(string): void $log
     */
    public static function start(Client $client, Settings $settings, array $kinds, \Closure $log): self
    {
        if (!\function_exists('pcntl_fork') || !\function_exists('posix_kill')) {
            throw new \LogicException('a worker needs the extensions pcntl and posix');
        }
        [$ours, $theirs] = Frames::pair();
        $program = (int) getmypid();
        $pid = pcntl_fork();
        if ($pid === -1) {
            throw new ConnectionFailed('the system gave no process for the agent');
        }
        if ($pid > 0) {
            $theirs->close();
            return new self($ours, $pid);
        }
        foreach ([SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM] as $signal) {
            pcntl_signal($signal, SIG_IGN);
        }
        $ours->close();
        try {
            $engine = new Engine($client, $settings, $kinds, null, $log);
            $engine->add(new Slot($theirs, $program, false));
            $engine->run();
        } catch (\Throwable $error) {
            $log($error->getMessage());
            $theirs->send(['type' => 'error', 'message' => $error->getMessage()]);
            $theirs->flushAll();
        }
        Child::vanish();
    }

    /** False when the agent has ended, so that the program starts another one. */
    public function isAlive(): bool
    {
        return !$this->frames->hasEnded();
    }

    /**
     * Wait for a job.
     *
     * @param float $seconds longest wait
     *
     * @return array<string, string>|null the members of the job as JSON texts; null when there is none, or a
     *                                    signal came
     *
     * @throws ConnectionFailed when the agent has ended, for example because the server refused it
     */
    public function next(float $seconds): ?array
    {
        if ($this->executes) {
            // Otherwise the agent would hold that job, and give no other one.
            $this->finish(['verdict' => 'failed', 'error' => 'the program did not say how the job ended']);
        }
        $end = Channel::now() + $seconds;
        if (!$this->asked) {
            $this->frames->send(['type' => 'want', 'ask' => ++$this->ask]);
            $this->asked = true;
        }
        while (true) {
            foreach ($this->frames->receive() as $message) {
                if ($message['type'] === 'error') {
                    $this->reap();
                    throw new ConnectionFailed('the agent of the worker ended: ' . $message['message']);
                }
                if (\in_array($message['type'], ['job', 'none'], true) && $message['ask'] === $this->ask) {
                    $this->asked = false;
                    if ($message['type'] === 'none') {
                        return null;
                    }
                    $this->executes = true;
                    $this->frames->send(['type' => 'began']);
                    $this->frames->flushAll();
                    return $message;
                }
            }
            if ($this->frames->hasEnded()) {
                $this->reap();
                throw new ConnectionFailed('the agent of the worker ended');
            }
            $left = $end - Channel::now();
            if ($left <= 0) {
                $this->withdraw();
                return null;
            }
            $read = [$this->frames->stream()];
            $write = [];
            if (Channel::select($read, $write, $left) === -1) {
                $this->withdraw();
                return null;
            }
        }
    }

    /** Want no job any more: the program may end, or look into another queue for long. */
    private function withdraw(): void
    {
        $this->frames->send(['type' => 'unwant']);
        $this->frames->flushAll();
        $this->asked = false;
        // The agent gives back what came meanwhile, so its answer to this question does not count.
        $this->ask++;
    }

    /**
     * Say how the job ended, and wait until a server knows it. The agent goes on when that takes too long.
     *
     * @param array{verdict: string, error?: string, delay_ms?: ?int, result?: string} $end
     */
    public function finish(array $end): void
    {
        $this->executes = false;
        $this->frames->send(['type' => 'end'] + $end);
        $this->frames->flushAll();
        $until = Channel::now() + self::SETTLE_SECONDS;
        while (Channel::now() < $until && !$this->frames->hasEnded()) {
            foreach ($this->frames->receive() as $message) {
                if ($message['type'] === 'settled') {
                    return;
                }
            }
            $this->frames->wait($until - Channel::now());
        }
    }

    public function close(): void
    {
        $this->frames->close();
    }

    private function reap(): void
    {
        $this->frames->close();
        // It has closed its end, and is about to be gone.
        $until = Channel::now() + self::REAP_SECONDS;
        $status = 0;
        while (pcntl_waitpid($this->pid, $status, WNOHANG) === 0 && Channel::now() < $until) {
            usleep(5_000);
        }
    }
}
