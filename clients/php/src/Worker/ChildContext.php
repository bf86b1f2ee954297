<?php

declare(strict_types=1);

namespace Tickr\Worker;

use Tickr\Attempt;
use Tickr\Cancelled;
use Tickr\Context;
use Tickr\Http\Channel;

/**
 * The context of a handler in a process of its own.
 *
 * @internal
 */
final class ChildContext extends Context
{
    private readonly float $deadline;
    private ?string $reason = null;

    public function __construct(Attempt $attempt, private readonly Frames $frames, private readonly int $parent)
    {
        parent::__construct($attempt);
        $this->deadline = Channel::now() + $attempt->timeoutMs / 1000;
    }

    public function log(string $line): void
    {
        $this->frames->send(['type' => 'log', 'line' => rtrim($line, "\r\n")]);
        $this->frames->flushAll();
    }

    public function sleep(int $ms): void
    {
        $end = Channel::now() + $ms / 1000;
        $this->check();
        while (($left = $end - Channel::now()) > 0) {
            $this->frames->wait(min($left, 1.0));
            $this->check();
        }
    }

    public function remainingMs(): int
    {
        return max(0, (int) (($this->deadline - Channel::now()) * 1000));
    }

    /**
     * Say how the attempt ended, for a process that is about to kill itself.
     *
     * @param array{verdict: string, error?: string, delay_ms?: ?int, result?: string} $end
     */
    public function end(array $end): void
    {
        $this->frames->send(['type' => 'end'] + $end);
        $this->frames->flushAll();
    }

    protected function cancelled(): ?string
    {
        foreach ($this->frames->receive() as $message) {
            if ($message['type'] === 'cancel') {
                $this->reason ??= (string) $message['reason'];
            }
        }
        if ($this->frames->hasEnded() || posix_getppid() !== $this->parent) {
            $this->reason ??= Cancelled::LOST;
        }
        return $this->reason;
    }

    protected function report(float $percent, ?string $note): void
    {
        $this->frames->send(['type' => 'progress', 'percent' => $percent, 'note' => $note]);
        $this->frames->flushAll();
    }

    protected function save(string $json): void
    {
        $this->frames->send(['type' => 'checkpoint', 'json' => $json]);
        $this->frames->flushAll();
    }
}
