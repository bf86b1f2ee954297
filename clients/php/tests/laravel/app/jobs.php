<?php

declare(strict_types=1);

namespace Tickr\Tests\App;

use Illuminate\Bus\Batchable;
use Illuminate\Bus\Queueable;
use Illuminate\Contracts\Queue\ShouldBeUnique;
use Illuminate\Contracts\Queue\ShouldQueue;
use Illuminate\Foundation\Bus\Dispatchable;
use Illuminate\Queue\InteractsWithQueue;
use Illuminate\Queue\Middleware\WithoutOverlapping;
use Illuminate\Queue\SerializesModels;

/** Writes a line into the diary of the test. */
function note(string $line): void
{
    file_put_contents(getenv('TICKR_TEST_DIR') . '/diary', $line . "\n", FILE_APPEND | LOCK_EX);
}

/** A closure for a queue. It stands here because a worker must find its class, and this one has none. */
function noting(string $line): \Closure
{
    return static function () use ($line): void {
        note($line);
    };
}

// Ordinary job classes of Laravel. Nothing in them knows tickr.

abstract class Job implements ShouldQueue
{
    use Batchable;
    use Dispatchable;
    use InteractsWithQueue;
    use Queueable;
    use SerializesModels;

    public function __construct(public string $word = 'x')
    {
    }

    public function failed(\Throwable $error): void
    {
        note("failed $this->word: " . $error->getMessage());
    }
}

class Plain extends Job
{
    public function handle(): void
    {
        note("ran $this->word attempt " . $this->attempts());
    }
}

class Fails extends Job
{
    public $tries = 3;
    public $backoff = [1, 0];

    public function handle(): void
    {
        note("tried $this->word attempt " . $this->attempts());
        throw new \RuntimeException('no luck');
    }
}

class FailsOnce extends Job
{
    public $tries = 2;

    public function handle(): void
    {
        note("tried $this->word attempt " . $this->attempts());
        if ($this->attempts() === 1) {
            throw new \RuntimeException('no luck');
        }
    }
}

class Releases extends Job
{
    public $tries = 3;

    public function handle(): void
    {
        note("released $this->word attempt " . $this->attempts());
        if ($this->attempts() < 3) {
            $this->release(0);
        }
    }
}

class FailsItself extends Job
{
    public $tries = 5;

    public function handle(): void
    {
        $this->fail(new \DomainException('not possible'));
    }
}

class Slow extends Job
{
    public $tries = 1;
    public $timeout = 1;

    public function handle(): void
    {
        note("began $this->word attempt " . $this->attempts());
        sleep(30);
    }
}

class SlowFailsOnTimeout extends Slow
{
    public $tries = 3;
    public $failOnTimeout = true;
}

class Dies extends Job
{
    public $tries = 1;

    public function handle(): void
    {
        note("dies $this->word attempt " . $this->attempts());
        posix_kill(getmypid(), SIGKILL);
    }
}

class Unique extends Job implements ShouldBeUnique
{
    public function uniqueId(): string
    {
        return $this->word;
    }

    public function handle(): void
    {
        note("ran $this->word");
    }
}

class Encrypted extends Job implements \Illuminate\Contracts\Queue\ShouldBeEncrypted
{
    public function handle(): void
    {
        note("ran $this->word");
    }
}

class Alone extends Job
{
    public $tries = 20;

    public function middleware(): array
    {
        return [(new WithoutOverlapping('one'))->releaseAfter(1)->expireAfter(60)];
    }

    public function handle(): void
    {
        note("in $this->word");
        usleep(300_000);
        note("out $this->word");
    }
}

class RetriesUntil extends Job
{
    public function retryUntil(): \DateTimeInterface
    {
        return now()->addSeconds(4);
    }

    public function handle(): void
    {
        note("tried $this->word attempt " . $this->attempts());
        usleep(400_000);
        throw new \RuntimeException('no luck');
    }
}

class Tolerates extends Job
{
    public $tries = 10;
    public $maxExceptions = 2;

    public function handle(): void
    {
        note("tried $this->word attempt " . $this->attempts());
        throw new \RuntimeException('no luck');
    }
}

class Blocks extends Job
{
    public $timeout = 60;

    public function handle(): void
    {
        note("began $this->word");
        $end = hrtime(true) + 13_000_000_000;
        while (($left = $end - hrtime(true)) > 0) {
            usleep(intdiv($left, 1000) + 1);
        }
        note("ended $this->word attempt " . $this->attempts());
    }
}
