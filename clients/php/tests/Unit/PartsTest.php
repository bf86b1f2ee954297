<?php

declare(strict_types=1);

namespace Tickr\Tests\Unit;

use PHPUnit\Framework\TestCase;
use Tickr\Cancelled;
use Tickr\Context;
use Tickr\Failed;
use Tickr\Http\Addresses;
use Tickr\Http\Turns;
use Tickr\Json;
use Tickr\Kind;
use Tickr\NewJob;
use Tickr\Outbox;
use Tickr\RawJson;
use Tickr\Snoozed;
use Tickr\Testing\FakeClient;
use Tickr\Testing\FakeContext;
use Tickr\Testing\Outcome;
use Tickr\Text;
use Tickr\Uuid;

#[Kind('mail', ['queue' => 'mails', 'priority' => 2])]
final class Mail
{
    public function __construct(public readonly string $to, public readonly int $count = 1)
    {
    }
}

final class PartsTest extends TestCase
{
    public function testTheOutboxRefusesWhatTheServerWouldRejectAfterTheCommit(): void
    {
        $pdo = $this->createMock(\PDO::class);
        $pdo->expects(self::never())->method('prepare');
        $outbox = new Outbox($pdo);
        $wrong = [
            static fn () => $outbox->enqueue('mail', str_repeat('x', 1 << 20)),
            static fn () => $outbox->enqueue('mail', [], id: '019ab2c3-d4e5-4f60-a1b2-c3d4e5f60718'),
        ];
        foreach ($wrong as $enqueue) {
            try {
                $enqueue();
                self::fail('an exception was expected');
            } catch (\InvalidArgumentException) {
            }
        }
    }

    public function testARowOfTheOutboxLeavesItsDelayToMysql(): void
    {
        $row = $this->row(['delay_ms' => 5_000, 'priority' => 2]);
        self::assertSame([null, '{"delay_ms":5000,"priority":2}'], [$row[4], $row[5]]);
        $this->expectExceptionMessage('give execute_at or delay_ms, not both');
        $this->row(['delay_ms' => 5_000, 'execute_at' => '2026-11-27T03:04:05Z']);
    }

    public function testATimeBetweenTwoMillisecondsIsRoundedUp(): void
    {
        self::assertSame('2026-11-27 01:04:05.679', $this->row(['execute_at' => '2026-11-27T03:04:05.6781+02:00'])[4]);
        self::assertSame('2026-11-27 01:04:05.678', $this->row(['execute_at' => '2026-11-27T01:04:05.678Z'])[4]);
        $time = new \DateTimeImmutable('2026-11-27T23:59:59.999001Z');
        self::assertSame('2026-11-28 00:00:00.000', $this->row(['execute_at' => $time])[4]);
        self::assertSame('2026-11-28T00:00:00.000Z', NewJob::time($time));
    }

    /** @dataProvider failuresWithoutExceptions */
    public function testAnInsertThatFailsWithoutAnExceptionOfPdoIsNoEnqueue(\PDO $pdo): void
    {
        $this->expectException(\PDOException::class);
        $this->expectExceptionMessage('the table is full');
        (new Outbox($pdo))->enqueue('mail');
    }

    /** @return iterable<string, array{\PDO}> */
    public function failuresWithoutExceptions(): iterable
    {
        $why = ['HY000', 1114, 'the table is full'];
        $statement = $this->createMock(\PDOStatement::class);
        $statement->method('execute')->willReturn(false);
        $statement->method('errorInfo')->willReturn($why);
        $executes = $this->createMock(\PDO::class);
        $executes->method('prepare')->willReturn($statement);
        $prepares = $this->createMock(\PDO::class);
        $prepares->method('prepare')->willReturn(false);
        $prepares->method('errorInfo')->willReturn($why);
        return ['of the statement' => [$executes], 'of its preparation' => [$prepares]];
    }

    /** @return list<string|null> the columns of the row that the outbox writes */
    private function row(array $options): array
    {
        $row = [];
        $statement = $this->createMock(\PDOStatement::class);
        $statement->method('execute')->willReturnCallback(static function (array $columns) use (&$row): bool {
            $row = $columns;
            return true;
        });
        $pdo = $this->createMock(\PDO::class);
        $pdo->method('prepare')->willReturn($statement);
        (new Outbox($pdo))->enqueue('mail', [], $options);
        return $row;
    }

    public function testAKeyThatNoPropertyOfPhpHasIsJson(): void
    {
        $json = new RawJson('{"\\u0000x":1}');
        self::assertSame(["\0x" => 1], $json->decode());
    }

    public function testJsonIsCutIntoItsMembersWithoutBeingRead(): void
    {
        $text = ' { "a" : 123456789012345678901234567890 , "b\"}" : {"x": "]},\\"", "y": [1, [2]] }'
            . ', "c": "\\\\", "d":[] } ';
        self::assertSame([
            'a' => '123456789012345678901234567890',
            'b"}' => '{"x": "]},\\"", "y": [1, [2]] }',
            'c' => '"\\\\"',
            'd' => '[]',
        ], Json::members($text));
        self::assertSame(['1', '"a,b"', '{}', 'null'], Json::members('[1, "a,b",{} , null]'));
        self::assertSame([], Json::members('[]'));
        self::assertSame([], Json::members('{}'));
        $this->expectException(\InvalidArgumentException::class);
        Json::members('7');
    }

    public function testTextsStayWithinTheirBounds(): void
    {
        self::assertSame(str_repeat('ü', 1999) . '…', Text::error(str_repeat('ü', 3000)));
        self::assertSame(str_repeat('ü', 2000), Text::error(str_repeat('ü', 2000)));
        self::assertSame('no reason was given', Text::error(" \n"));
        self::assertSame("a\u{fffd}b", Text::error("a\xffb"));
        self::assertSame('new', Text::newest("old line\nnew", 5));
        self::assertSame('üü', Text::newest('üüü', 5));
    }

    public function testIdsSortInTheOrderInWhichTheyWereMade(): void
    {
        $ids = array_map(static fn () => Uuid::v7(), range(1, 6000));
        $sorted = $ids;
        sort($sorted);
        self::assertSame($sorted, $ids);
        self::assertCount(6000, array_unique($ids));
        $form = '/^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/D';
        self::assertMatchesRegularExpression($form, $ids[0]);
    }

    public function testAJobIsWrittenAsTheApiTakesIt(): void
    {
        $at = new \DateTimeImmutable('2026-11-27T03:04:05.678+02:00');
        $job = new NewJob('echo', [], ['execute_at' => $at, 'tags' => ['a'], 'order_key' => null]);
        self::assertSame(
            '{"kind":"echo","payload":{},"execute_at":"2026-11-27T01:04:05.678Z","tags":["a"]}',
            $job->toJson(),
        );
        self::assertSame(
            '{"kind":"echo","payload":{"n":18446744073709551616}}',
            (new NewJob('echo', new RawJson('{"n":18446744073709551616}')))->toJson(),
        );
        self::assertSame(
            '{"kind":"mail","payload":{"to":"ada","count":1},"priority":1,"queue":"mails"}',
            (new NewJob(new Mail('ada'), options: ['priority' => 1]))->toJson(),
        );
        $this->expectExceptionMessage('no option "delay"');
        new NewJob('echo', [], ['delay' => 5]);
    }

    public function testAddressesAreCheckedAndFailuresLeadToTheNext(): void
    {
        $addresses = new Addresses('http://a:1/base/, https://[::1]');
        self::assertSame(['scheme' => 'http', 'host' => 'a', 'port' => 1, 'path' => '/base'], $addresses->at(0));
        self::assertSame(['scheme' => 'https', 'host' => '[::1]', 'port' => 443, 'path' => ''], $addresses->at(1));
        $addresses->failed(0);
        $addresses->failed(0);
        self::assertSame(1, $addresses->current());
        $this->expectException(\InvalidArgumentException::class);
        new Addresses('http://user:secret@a');
    }

    public function testTheOtherAddressIsTriedWhileOneWaitsForItsRetryAfter(): void
    {
        $addresses = new Addresses('http://a:1,http://b:1');
        $turns = new Turns($addresses, 5.0);
        self::assertSame(0, $turns->place());
        self::assertSame(0.0, $turns->next(0, 60.0));
        for ($try = 0; $try < 3; $try++) {
            self::assertSame(1, $turns->place());
            self::assertLessThan(5.0, $turns->next(1));
        }
        $addresses->failed(0);
        self::assertSame(1, $turns->place());
        self::assertGreaterThan(29.0, $turns->next(1, 30.0));
    }

    public function testAPauseIsOverWhenTheAddressThatNamedATimeIsFree(): void
    {
        $turns = new Turns(new Addresses('http://a:1,http://b:1'), 5.0);
        for ($round = 0; $round < 8; $round++) {
            $turns->next(0);
            $turns->next(1);
        }
        $turns->next(0, 1.0);
        self::assertLessThanOrEqual(1.0, $turns->next(1));
        $turns->next(0, 1.0);
        self::assertGreaterThan(2.0, $turns->next(1, 2.0), 'a pause still grows when all addresses name a time');
    }

    public function testAFakeClientRecordsWhatWasEnqueued(): void
    {
        $client = new FakeClient();
        $client->assertNothingEnqueued();
        $client->enqueue(new Mail('ada'));
        $client->enqueue('report', ['month' => 11], ['delay_ms' => 5]);
        self::assertSame(5, $client->assertEnqueued('report')->options['delay_ms']);
        $client->assertEnqueued(Mail::class, static fn (NewJob $job) => $job->payload['to'] === 'ada');
        $this->expectExceptionMessage('no such job of the kind "mail" was enqueued');
        $client->assertEnqueued('mail', static fn (NewJob $job) => $job->payload['to'] === 'bob');
    }

    public function testAHandlerRunsAloneWithAFakeContext(): void
    {
        $handler = static function (array $payload, Context $context): array {
            $context->progress(50, "half\nway");
            $context->checkpoint(['row' => 7]);
            $context->log('a line');
            $context->sleep(1000);
            return ['sum' => array_sum($payload), 'from' => $context->lastCheckpoint()];
        };
        $context = new FakeContext([1, 2], checkpoint: ['row' => 3]);
        $outcome = Outcome::of($handler, $context);
        self::assertSame('succeeded', $outcome->verdict);
        self::assertSame(['sum' => 3, 'from' => ['row' => 3]], $outcome->result);
        self::assertSame([50.0, 'half way', ['row' => 7], ['a line'], 1000], [
            $context->percent, $context->note, $context->saved, $context->lines, $context->sleptMs,
        ]);
        $stopped = Outcome::of($handler, new FakeContext([1], cancelled: Cancelled::CANCELLED));
        self::assertSame(['failed', 'the job was cancelled'], [$stopped->verdict, $stopped->error]);
    }

    public function testAnOutcomeHasTheJobsThatFollowASuccessAndNoneOfAnotherVerdict(): void
    {
        $handler = static function (array $payload, Context $context): void {
            $context->then(new Mail('ada'), options: ['delay_ms' => 5, 'in_batch' => true]);
            $context->then(new NewJob('plain', [1], ['order_key' => 'o']), options: ['priority' => 1]);
            $payload === [] || throw new Failed('no');
        };
        $mail = ['kind' => 'mail', 'payload' => ['to' => 'ada', 'count' => 1], 'delay_ms' => 5, 'queue' => 'mails',
            'priority' => 2, 'in_batch' => true];
        $plain = ['kind' => 'plain', 'payload' => [1], 'priority' => 1, 'order_key' => 'o'];
        self::assertSame([$mail, $plain], Outcome::of($handler)->followUps);
        self::assertSame([], Outcome::of($handler, new FakeContext([1]))->followUps);
        $wrong = [
            'has no option "after"' => static fn (Context $context) => $context->then('plain', [], ['after' => ['x']]),
            'has no option "unique_key"' => static fn (Context $context) =>
                $context->then(new NewJob('plain', [], ['unique_key' => 'x'])),
            'cannot be written as JSON' => static fn (Context $context) => $context->then('plain', NAN),
        ];
        foreach ($wrong as $error => $then) {
            $outcome = Outcome::of(static fn ($payload, Context $context) => $then($context));
            self::assertStringContainsString($error, (string) $outcome->error);
        }
    }

    public function testAtMostAThousandJobsFollowOne(): void
    {
        $follow = static function (int $count): Outcome {
            return Outcome::of(static function ($payload, Context $context) use ($count): void {
                for ($row = 0; $row < $count; $row++) {
                    $context->then('mail', ['row' => $row]);
                }
            });
        };
        self::assertSame(['row' => 999], $follow(1_000)->followUps[999]['payload']);
        $outcome = $follow(1_001);
        $error = 'LengthException: at most 1,000 jobs follow one: let one of them enqueue the rest';
        self::assertSame(['failed', $error, []], [$outcome->verdict, $outcome->error, $outcome->followUps]);
    }

    public function testEveryEndOfAHandlerHasAVerdict(): void
    {
        $ends = [
            [static fn () => throw new \DomainException('no'), 'failed', 'DomainException: no', null],
            [static fn () => throw new Failed('later', 5), 'failed', 'later', 5],
            [static fn () => new Snoozed(7, 'not yet'), 'snoozed', 'not yet', 7],
            [static fn () => NAN, 'failed', 'the result of the handler: the value cannot be written as JSON: '
                . 'Inf and NaN cannot be JSON encoded', null],
            [static fn () => str_repeat('x', 262_143), 'failed',
                'the result of the handler has 262145 bytes of JSON; at most 262144 are kept', null],
            [static fn () => intdiv(1, 0), 'failed', 'DivisionByZeroError: Division by zero', null],
        ];
        foreach ($ends as [$handler, $verdict, $error, $delay]) {
            $outcome = Outcome::of($handler);
            self::assertSame([$verdict, $error, $delay], [$outcome->verdict, $outcome->error, $outcome->delayMs]);
        }
    }

    public function testAPayloadThatDoesNotFitItsClassIsRejected(): void
    {
        self::assertEquals(new Mail('ada', 2), Kind::build(Mail::class, ['to' => 'ada', 'count' => 2]));
        foreach ([['to' => []], ['nobody' => 1], []] as $payload) {
            $outcome = Outcome::of(static fn () => Kind::build(Mail::class, $payload));
            self::assertSame('rejected', $outcome->verdict);
        }
    }
}
