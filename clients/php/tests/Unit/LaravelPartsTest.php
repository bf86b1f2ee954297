<?php

declare(strict_types=1);

namespace Tickr\Tests\Unit;

use PHPUnit\Framework\TestCase;
use Tickr\Attempt;
use Tickr\Laravel\TickrConnector;
use Tickr\Laravel\TickrJob;
use Tickr\Laravel\TickrQueue;
use Tickr\RawJson;
use Tickr\Tests\Support\TestServer;

/** A class as Laravel calls it for a failed job. */
final class FailedRecorder
{
    /** @var list<\Throwable> */
    public static array $errors = [];

    public function failed(array $data, \Throwable $error, string $uuid): void
    {
        self::$errors[] = $error;
    }
}

/** The parts of the queue driver that need no server of tickr. */
final class LaravelPartsTest extends TestCase
{
    private const PAYLOAD = '{"job":"Tickr\\\\Tests\\\\Unit\\\\FailedRecorder@call","displayName":"Mail","data":{}}';

    public static function setUpBeforeClass(): void
    {
        if (!class_exists(\Illuminate\Container\Container::class)) {
            if (stream_resolve_include_path('Illuminate/autoload.php') === false) {
                self::markTestSkipped('Laravel is not installed');
            }
            require_once 'Illuminate/autoload.php';
        }
    }

    protected function setUp(): void
    {
        FailedRecorder::$errors = [];
    }

    /** @dataProvider delays */
    public function testAReleaseTakesEveryDelayThatLaravelKnows(\Closure $delay, int $least, int $most): void
    {
        $end = null;
        $this->job(1, $end)->release($delay());
        self::assertSame('failed', $end['verdict']);
        self::assertGreaterThanOrEqual($least, $end['delay_ms']);
        self::assertLessThanOrEqual($most, $end['delay_ms']);
        self::assertMatchesRegularExpression('/^the job was released for \d+ s$/', $end['error']);
    }

    /** @return array<string, array{\Closure, int, int}> with the least and the most milliseconds */
    public static function delays(): array
    {
        return [
            'seconds' => [static fn () => 60, 60_000, 60_000],
            'a time' => [static fn () => new \DateTimeImmutable('+60 seconds'), 30_000, 61_000],
            'an interval' => [static fn () => new \DateInterval('PT60S'), 30_000, 61_000],
            'a time that has passed' => [static fn () => new \DateTimeImmutable('-60 seconds'), 0, 0],
        ];
    }

    public function testAReleaseInTheLastAttemptCallsTheFailedMethod(): void
    {
        $end = null;
        $job = $this->job(100, $end);
        $job->release(60);
        self::assertSame('rejected', $end['verdict']);
        self::assertTrue($job->hasFailed());
        self::assertInstanceOf(\Illuminate\Queue\MaxAttemptsExceededException::class, FailedRecorder::$errors[0]);

        $error = new \DomainException('no luck');
        $job = $this->job(100, $end);
        $job->blame($error);
        $job->release();
        self::assertSame([$error], \array_slice(FailedRecorder::$errors, 1));
        self::assertSame('DomainException: no luck', $end['error']);
    }

    public function testAWorkerHasATokenOfItsOwn(): void
    {
        $server = new TestServer(static fn () => [200, '{}']);
        $tokens = function (array $config) use ($server): array {
            $connector = new TickrConnector(new \Illuminate\Container\Container());
            $queue = $connector->connect(['url' => $server->url, 'token' => 'produces'] + $config);
            self::assertInstanceOf(TickrQueue::class, $queue);
            $queue->client()->call('GET', '/v1/whoami');
            $queue->workClient()->call('GET', '/v1/whoami');
            $calls = \array_slice($server->requests(), -2);
            return array_map(static fn ($one) => $one['headers']['authorization'], $calls);
        };
        self::assertSame(['Bearer produces', 'Bearer works'], $tokens(['work_token' => 'works']));
        self::assertSame(['Bearer produces', 'Bearer produces'], $tokens(['work_token' => null]));
    }

    public function testTheWorkerOfLaravelFetchesWithTheTokenOfWorkersAndFailsWhatItCannotRead(): void
    {
        $payload = str_repeat('[', 600) . str_repeat(']', 600);
        $job = '{"id":"j1","kind":"laravel","queue":"laravel","payload":' . $payload . ',"token":"t1"}';
        $server = new TestServer(static function (string $method, string $path, mixed $body) use ($job): mixed {
            static $fetches = 0;
            return match (basename($path)) {
                'workers' => [201, ['id' => 'w-1', 'lease_ms' => 60_000, 'beat_ms' => 20_000]],
                'fetch' => ++$fetches === 1 ? [200, '{"jobs":[' . $job . '],"drain":false}'] : 'hang',
                'finish' => [200, ['results' => [['token' => 't1', 'result' => 'settled']]]],
                default => [204, ''],
            };
        });
        $config = ['url' => $server->url, 'token' => 'produces', 'work_token' => 'works', 'block_for' => 10];
        $queue = (new TickrConnector(new \Illuminate\Container\Container()))->connect($config);
        self::assertNull($queue->pop());
        $verdict = $server->requests('/finish')[0]['body']['verdicts'][0];
        self::assertSame('failed', $verdict['verdict']);
        self::assertStringStartsWith('the job cannot be read: ', $verdict['error']);
        self::assertSame('Bearer works', $server->requests('/fetch')[0]['headers']['authorization']);
        // The agent ends with its queue, and says so to the server before that ends.
        unset($queue);
        $server->await('/w-1', static fn ($all) => $all !== []);
    }

    /** A job in one of its 100 attempts, and the verdict that it gives. */
    private function job(int $attempt, ?array &$end): TickrJob
    {
        $container = new \Illuminate\Container\Container();
        $container->instance(
            \Illuminate\Contracts\Events\Dispatcher::class,
            new \Illuminate\Events\Dispatcher($container),
        );
        $read = new Attempt('j1', 'laravel', 'laravel', new RawJson(self::PAYLOAD), $attempt, 100, 300_000);
        return new TickrJob($container, $read, 'tickr', 'laravel', static function (array $given) use (&$end): void {
            $end = $given;
        });
    }
}
