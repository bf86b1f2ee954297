<?php

declare(strict_types=1);

namespace Tickr\Worker;

/**
 * An attempt of which the verdict is not answered yet, or a lost one whose handler has not ended.
 *
 * @internal
 */
final class Held
{
    public ?Slot $slot = null;
    /** The process that did not start with the engine, and waits for the answer to its verdict. */
    public ?Slot $waiting = null;
    /** True once the process that did not start with the engine has taken it. */
    public bool $began = false;
    public float $deadline;
    /** From when its lease holds: from the fetch that brought it, or from when the newest answered beat was sent. */
    public float $renewed;
    /** Why the handler was told to stop. `lost` without `$lost` says that no beat was answered for long. */
    public ?string $cancelled = null;
    public float $killAt = INF;
    /** It keeps its slot until its handler ends, but the worker does not hold it any more, and lists it no more. */
    public bool $lost = false;
    /** @var array{percent: float, note: ?string}|null what the next beat carries */
    public ?array $progress = null;
    public ?string $checkpoint = null;
    public string $log = '';
    /** @var array<string, string>|null the members of the verdict, as JSON texts */
    public ?array $verdict = null;
    public bool $sending = false;
    /** Until when the verdict waits, because another session locked the row of the job; and the next such pause. */
    public float $notBefore = 0.0;
    public float $pause = 0.5;
    /** Until when its report waits, because another session locked the row of the job. */
    public float $unsavedUntil = 0.0;

    /**
     * @param array<string, string> $job   the members of the job, as JSON texts
     * @param float                 $since from when its lease holds
     */
    public function __construct(public readonly string $token, public readonly array $job, float $now, float $since)
    {
        $this->renewed = $since;
        $this->deadline = $now + ((int) json_decode($job['timeout_ms'] ?? '300000')) / 1000;
    }

    /** The attempt in a beat, as JSON text. */
    public function entry(): string
    {
        return \Tickr\Json::object(['token' => \Tickr\Json::encode($this->token)]);
    }

    /** The attempt in a beat with its report, as JSON text. */
    public function report(): string
    {
        $members = ['token' => \Tickr\Json::encode($this->token)];
        if ($this->progress !== null) {
            $members['percent'] = \Tickr\Json::encode($this->progress['percent']);
            if ($this->progress['note'] !== null) {
                $members['note'] = \Tickr\Json::encode($this->progress['note']);
            }
        }
        if ($this->checkpoint !== null) {
            $members['checkpoint'] = $this->checkpoint;
        }
        return \Tickr\Json::object($members);
    }

    public function hasReport(): bool
    {
        return !$this->lost && ($this->progress !== null || $this->checkpoint !== null);
    }
}
