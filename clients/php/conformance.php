<?php

declare(strict_types=1);

// The program that `tickr conformance` runs against this library.

require is_file(__DIR__ . '/vendor/autoload.php') ? __DIR__ . '/vendor/autoload.php' : __DIR__ . '/autoload.php';

use Tickr\Client;
use Tickr\Context;
use Tickr\Failed;
use Tickr\Json;
use Tickr\RawJson;
use Tickr\Rejected;
use Tickr\Released;
use Tickr\Snoozed;
use Tickr\Worker;
use Tickr\Worker\Settings;

$setting = static fn (string $name, string $default): string => getenv($name) ?: $default;
$client = new Client();
$worker = new Worker($client, new Settings(
    name: 'conformance-php',
    queues: explode(',', $setting('TICKR_QUEUES', 'conformance')),
    slots: (int) $setting('TICKR_SLOTS', '4'),
    leaseMs: (int) $setting('TICKR_LEASE_MS', '10000'),
    graceMs: (int) $setting('TICKR_GRACE_MS', '5000'),
    waitMs: (int) $setting('TICKR_WAIT_MS', '30000'),
));

$worker->handle('conformance.echo', static fn ($payload, Context $context) => $context->attempt->payloadJson);
$worker->handle('conformance.fail', static fn (array $payload) => throw new Failed(
    $payload['message'],
    $payload['delay_ms'] ?? null,
));
$worker->handle('conformance.reject', static fn (array $payload) => new Rejected($payload['message']));
$worker->handle('conformance.snooze', static fn (array $payload) => throw new Snoozed(
    $payload['delay_ms'],
    $payload['message'],
));
$worker->handle('conformance.release', static fn () => throw new Released());
$worker->handle('conformance.throw', static fn (array $payload) => throw new DomainException($payload['message']));
$worker->handle('conformance.sleep', static function (array $payload, Context $context): array {
    $context->sleep($payload['ms']);
    return ['slept' => true];
});
$worker->handle('conformance.block', static function (array $payload): void {
    $end = hrtime(true) + $payload['ms'] * 1_000_000;
    while (($left = $end - hrtime(true)) > 0) {
        usleep(intdiv($left, 1000) + 1);
    }
});
$worker->handle('conformance.progress', static function (array $payload, Context $context): RawJson {
    $context->progress($payload['percent'], $payload['note']);
    // The checkpoint is passed on as text, so that numbers stay what they are.
    $context->checkpoint(new RawJson(Json::members($context->attempt->payloadJson->text)['checkpoint'] ?? 'null'));
    $context->sleep($payload['ms']);
    return new RawJson('{"began_with":' . ($context->attempt->checkpoint?->text ?? 'null') . '}');
});
$worker->handle('conformance.log', static function (array $payload, Context $context): void {
    foreach ($payload['lines'] as $line) {
        $context->log($line);
    }
});
$worker->handle('conformance.big', static fn (array $payload) => str_repeat('x', $payload['bytes']));
$worker->handle('conformance.enqueue', static function (array $payload, Context $context) use ($client): array {
    $body = new RawJson(Json::members($context->attempt->payloadJson->text)['payload'] ?? '{}');
    return ['id' => $client->enqueue($payload['kind'], $body, ['queue' => $payload['queue']])->id];
});

exit($worker->run());
