<?php

return [
    'default' => 'file',
    'stores' => ['file' => ['driver' => 'file', 'path' => getenv('TICKR_TEST_DIR') . '/cache']],
    'prefix' => 'test',
];
