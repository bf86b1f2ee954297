<?php

declare(strict_types=1);

namespace Tickr;

/** A job to enqueue: a kind, a payload and options. */
final class NewJob
{
    private const OPTIONS = [
        'queue', 'execute_at', 'delay_ms', 'expires_at', 'expires_in_ms', 'max_attempts', 'timeout_ms', 'priority',
        'unique_key', 'unique_fields', 'on_conflict', 'max_wait_ms', 'unique_until', 'unique_for_ms', 'order_key',
        'on_failure', 'limit_key', 'after', 'on_parent_failure', 'batch', 'retry', 'tags', 'trace',
    ];

    private const FOLLOW_UP_OPTIONS = [
        'queue', 'execute_at', 'delay_ms', 'expires_in_ms', 'max_attempts', 'timeout_ms', 'priority', 'order_key',
        'on_failure', 'limit_key', 'retry', 'tags', 'in_batch',
    ];

    public readonly string $kind;
    public readonly mixed $payload;
    /** @var array<string, mixed> */
    public readonly array $options;

    /**
     * @param string|object $kind    the name of the kind, or an object whose class has the attribute {@see Kind}
     * @param mixed         $payload the payload, when `$kind` is a name. An empty array is sent as `{}`
     * @param array{
     *     queue?: string, execute_at?: string|\DateTimeInterface, delay_ms?: int,
     *     expires_at?: string|\DateTimeInterface, expires_in_ms?: int, max_attempts?: int, timeout_ms?: int,
     *     priority?: int, unique_key?: string, unique_fields?: list<string>, on_conflict?: string, max_wait_ms?: int,
     *     unique_until?: string, unique_for_ms?: int, order_key?: string, on_failure?: string, limit_key?: string,
     *     after?: list<string|int>, on_parent_failure?: string, batch?: string, retry?: array<string, mixed>,
     *     tags?: list<string>, trace?: array<string, mixed>
     * } $options every field of `POST /v1/jobs` by its name there; times that end in `_ms` are milliseconds
     *
     * @throws \InvalidArgumentException when an option has no such name, or an object is no payload of a kind
     */
    public function __construct(string|object $kind, mixed $payload = [], array $options = [])
    {
        if (\is_object($kind)) {
            $of = Kind::of($kind) ?? throw new \InvalidArgumentException(
                $kind::class . ' is not a kind: give it the attribute #[Tickr\Kind(\'name\')]',
            );
            $payload = $kind instanceof \JsonSerializable ? $kind : get_object_vars($kind);
            $options += $of->options;
            $kind = $of->name;
        }
        foreach (array_keys($options) as $name) {
            if (!\in_array($name, self::OPTIONS, true)) {
                $message = "a job has no option \"$name\"; the options are " . implode(', ', self::OPTIONS);
                throw new \InvalidArgumentException($message);
            }
        }
        foreach (['execute_at', 'expires_at'] as $name) {
            if (($options[$name] ?? null) instanceof \DateTimeInterface) {
                $options[$name] = self::time($options[$name]);
            }
        }
        $this->kind = $kind;
        $this->payload = $payload;
        $this->options = array_filter($options, static fn ($value) => $value !== null);
    }

    /** The job as JSON text, as the API takes it. */
    public function toJson(): string
    {
        return $this->json([]);
    }

    /**
     * A job that follows a success, as JSON text. See {@see Context::then}.
     *
     * @internal
     *
     * @param array<string, mixed> $options
     *
     * @throws \InvalidArgumentException when an option or the payload is wrong
     */
    public static function followUp(string|object $kind, mixed $payload, array $options): string
    {
        if ($kind instanceof self) {
            $options += $kind->options;
            [$kind, $payload] = [$kind->kind, $kind->payload];
        }
        $options += \is_object($kind) ? Kind::of($kind)?->options ?? [] : [];
        foreach (array_keys($options) as $name) {
            if (!\in_array($name, self::FOLLOW_UP_OPTIONS, true)) {
                $names = implode(', ', self::FOLLOW_UP_OPTIONS);
                $message = "a job that follows a success has no option \"$name\"; the options are $names";
                throw new \InvalidArgumentException($message);
            }
        }
        $inBatch = isset($options['in_batch']) ? ['in_batch' => $options['in_batch']] : [];
        unset($options['in_batch']);
        $job = new self($kind, $payload, $options);
        return $job->json($inBatch);
    }

    /** A time as the API takes it: UTC with milliseconds. It is rounded up, because no job may start early. */
    public static function time(\DateTimeInterface $time): string
    {
        return self::utc($time)->format('Y-m-d\TH:i:s.v\Z');
    }

    /**
     * The next whole millisecond in UTC.
     *
     * @internal
     */
    public static function utc(\DateTimeInterface $time): \DateTimeImmutable
    {
        $utc = \DateTimeImmutable::createFromInterface($time)->setTimezone(new \DateTimeZone('UTC'));
        $over = (int) $utc->format('u') % 1000;
        return $over === 0 ? $utc : $utc->modify('+' . (1000 - $over) . ' microseconds');
    }

    /** @param array<string, mixed> $more options that only a job that follows a success has */
    private function json(array $more): string
    {
        $members = ['kind' => Json::encode($this->kind), 'payload' => Json::payload($this->payload)];
        return Json::object($members + array_map(Json::encode(...), $this->options + $more));
    }
}
