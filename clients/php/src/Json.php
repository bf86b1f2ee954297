<?php

declare(strict_types=1);

namespace Tickr;

/**
 * JSON as this library writes and reads it.
 *
 * @internal
 */
final class Json
{
    private const FLAGS = JSON_UNESCAPED_UNICODE | JSON_UNESCAPED_SLASHES | JSON_PRESERVE_ZERO_FRACTION;

    /** @throws \InvalidArgumentException when the value cannot be written as JSON */
    public static function encode(mixed $value): string
    {
        if ($value instanceof RawJson) {
            return $value->text;
        }
        try {
            return json_encode($value, self::FLAGS | JSON_THROW_ON_ERROR);
        } catch (\JsonException $error) {
            throw new \InvalidArgumentException('the value cannot be written as JSON: ' . $error->getMessage());
        }
    }

    /** Write text of any origin: bytes that are no UTF-8 are replaced. */
    public static function encodeLossy(mixed $value): string
    {
        return (string) json_encode($value, self::FLAGS | JSON_INVALID_UTF8_SUBSTITUTE | JSON_PARTIAL_OUTPUT_ON_ERROR);
    }

    /** Write a payload. An empty array is an object here, because that is what a payload is. */
    public static function payload(mixed $payload): string
    {
        return $payload === [] || $payload === null ? '{}' : self::encode($payload);
    }

    /** Read JSON into arrays. Integers above 64 bits become strings, so that no digit is lost. */
    public static function decode(string $text): mixed
    {
        return json_decode($text, true, 512, JSON_THROW_ON_ERROR | JSON_BIGINT_AS_STRING);
    }

    /**
     * Put members into an object whose values are JSON texts already.
     *
     * @param array<string, string> $members
     */
    public static function object(array $members): string
    {
        $parts = [];
        foreach ($members as $name => $text) {
            $parts[] = json_encode((string) $name) . ':' . $text;
        }
        return '{' . implode(',', $parts) . '}';
    }

    /**
     * Cut an object or an array into the texts of its members, without reading them.
     *
     * @return array<string|int, string>
     *
     * @throws \InvalidArgumentException when the text is neither
     */
    public static function members(string $json): array
    {
        $json = trim($json);
        $isObject = ($json[0] ?? '') === '{';
        if (!$isObject && ($json[0] ?? '') !== '[') {
            throw new \InvalidArgumentException('expected a JSON object or array');
        }
        $members = [];
        $length = \strlen($json);
        $at = 1 + strspn($json, " \t\r\n", 1);
        while ($at < $length && $json[$at] !== '}' && $json[$at] !== ']') {
            $name = null;
            if ($isObject) {
                $end = self::endOfString($json, $at);
                $name = json_decode(substr($json, $at, $end - $at));
                $at = $end + strspn($json, " \t\r\n:", $end);
            }
            $end = self::endOfValue($json, $at);
            $text = rtrim(substr($json, $at, $end - $at));
            if ($isObject) {
                $members[$name] = $text;
            } else {
                $members[] = $text;
            }
            $at = $end + strspn($json, " \t\r\n,", $end);
        }
        return $members;
    }

    /** The first place behind the string that begins here. */
    private static function endOfString(string $json, int $at): int
    {
        $length = \strlen($json);
        $at++;
        while ($at < $length) {
            $at += strcspn($json, '"\\', $at);
            if (($json[$at] ?? '"') === '"') {
                return min($at + 1, $length);
            }
            $at += 2;
        }
        return $length;
    }

    /** The first place behind the value that begins here. */
    private static function endOfValue(string $json, int $at): int
    {
        $length = \strlen($json);
        $depth = 0;
        while ($at < $length) {
            $at += strcspn($json, '"{}[],', $at);
            $byte = $json[$at] ?? '';
            if ($byte === '"') {
                $at = self::endOfString($json, $at);
                continue;
            }
            if ($byte === '{' || $byte === '[') {
                $depth++;
            } elseif ($byte === ',' && $depth === 0) {
                return $at;
            } elseif ($byte === '}' || $byte === ']') {
                if ($depth === 0) {
                    return $at;
                }
                $depth--;
            }
            $at++;
        }
        return $length;
    }
}
