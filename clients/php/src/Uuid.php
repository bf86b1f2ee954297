<?php

declare(strict_types=1);

namespace Tickr;

final class Uuid
{
    private static int $lastMs = 0;
    private static int $counter = 0;

    /**
     * Make a UUIDv7. The ids of one process sort in the order in which they were made.
     *
     * @return string such as `019ab2c3-d4e5-7f60-a1b2-c3d4e5f60718`
     */
    public static function v7(): string
    {
        $ms = (int) floor(microtime(true) * 1000);
        if ($ms > self::$lastMs) {
            self::$lastMs = $ms;
            self::$counter = random_int(0, 0x7FF);
        } elseif (++self::$counter > 0xFFF) {
            self::$lastMs++;
            self::$counter = 0;
        }
        $hex = sprintf('%012x7%03x', self::$lastMs, self::$counter) . bin2hex(random_bytes(8));
        $hex[16] = dechex(8 | (hexdec($hex[16]) & 3));
        return self::withDashes($hex);
    }

    /** Make a random UUID. */
    public static function v4(): string
    {
        $hex = bin2hex(random_bytes(16));
        $hex[12] = '4';
        $hex[16] = dechex(8 | (hexdec($hex[16]) & 3));
        return self::withDashes($hex);
    }

    private static function withDashes(string $hex): string
    {
        return implode('-', [
            substr($hex, 0, 8), substr($hex, 8, 4), substr($hex, 12, 4), substr($hex, 16, 4), substr($hex, 20),
        ]);
    }
}
