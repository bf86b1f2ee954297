<?php

declare(strict_types=1);

namespace Tickr\Testing;

use Tickr\Attempt;
use Tickr\Cancelled;
use Tickr\Context;
use Tickr\Json;
use Tickr\RawJson;

/** A context for a handler that is tested alone. It records what the handler reports. */
final class FakeContext extends Context
{
    /** @var list<string> */
    public array $lines = [];
    public ?float $percent = null;
    public ?string $note = null;
    public mixed $saved = null;
    /** Milliseconds that the handler slept; no time passes. */
    public int $sleptMs = 0;
    private ?string $reason = null;
    private int $checks = 0;

    /**
     * @param mixed       $payload     the payload, as the program would enqueue it
     * @param mixed       $checkpoint  what an earlier attempt saved
     * @param string|null $cancelled   one of the constants of {@see Cancelled}: the handler must stop
     * @param int         $afterChecks the handler may look so many times before it hears that it must stop
     */
    public function __construct(
        mixed $payload = [],
        mixed $checkpoint = null,
        string $kind = 'test',
        int $attempt = 1,
        private readonly ?string $cancelled = null,
        private readonly int $afterChecks = 0,
    ) {
        $saved = $checkpoint === null ? null : new RawJson(Json::encode($checkpoint));
        $json = new RawJson(Json::payload($payload));
        $id = '00000000-0000-7000-8000-000000000000';
        parent::__construct(new Attempt($id, $kind, 'test', $json, $attempt, checkpoint: $saved));
    }

    public function log(string $line): void
    {
        $this->lines[] = $line;
    }

    public function sleep(int $ms): void
    {
        $this->check();
        $this->sleptMs += $ms;
    }

    public function remainingMs(): int
    {
        return $this->attempt->timeoutMs - $this->sleptMs;
    }

    protected function cancelled(): ?string
    {
        if ($this->cancelled !== null && $this->checks++ >= $this->afterChecks) {
            $this->reason = $this->cancelled;
        }
        return $this->reason;
    }

    protected function report(float $percent, ?string $note): void
    {
        $this->percent = $percent;
        $this->note = $note ?? $this->note;
    }

    protected function save(string $json): void
    {
        $this->saved = Json::decode($json);
    }
}
